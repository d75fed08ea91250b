"""`python -m opd_conf`."""

from opd_conf.app import main

main()
