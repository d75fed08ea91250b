"""The config group `verl`: verl's own trees, loaded when an engine file asks for one (search path `verl://`)."""

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.object_type import ObjectType
from hydra.plugins.config_source import ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin


class VerlSearchPath(SearchPathPlugin):
    """Puts `verl://` on every search path; said in opd.yaml, a user's own hydra.searchpath would replace it."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        search_path.append("opd_conf", "verl://")


class VerlConfigSource(ConfigSource):
    """Serves `/verl/<tree>` from verl's flattened files; nothing else of verl's folder is on the search path."""

    @staticmethod
    def scheme() -> str:
        return "verl"

    def load_config(self, config_path: str) -> ConfigResult:
        from opd_conf import resolvers, verl_tree  # noqa: F401  (whoever composes verl's tree composes our files)

        return ConfigResult(
            config=verl_tree.load(self._tree(config_path)),
            path="verl://",
            provider=self.provider,
            header={"package": None},
        )

    def available(self) -> bool:
        return True

    def is_group(self, config_path: str) -> bool:
        return config_path.strip("/") in ("", "verl")

    def is_config(self, config_path: str) -> bool:
        return config_path.startswith("verl/") and bool(self._tree(config_path))

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        from opd_conf import verl_tree

        if config_path.strip("/") == "":
            return [] if results_filter == ObjectType.CONFIG else ["verl"]
        if config_path.strip("/") == "verl" and results_filter != ObjectType.GROUP:
            return verl_tree.names()
        return []

    @staticmethod
    def _tree(config_path: str) -> str:
        return config_path.removeprefix("verl/").removesuffix(".yaml")
