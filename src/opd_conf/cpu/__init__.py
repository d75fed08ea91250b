"""verl's whole distillation on a CPU: a platform plugin for verl, and a task small enough to learn there."""
