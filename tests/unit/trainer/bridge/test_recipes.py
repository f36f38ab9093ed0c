"""The catalog and the trainer's image have the same functions of this project."""

from megatron_operator import catalog
from megatron_trainer.bridge import recipes


def test_the_catalog_names_every_function_of_the_image_as_this_project_s() -> None:
    library = catalog.load()
    layouts = [layout for entry in library for layout in (*entry.layouts, *entry.functions)]
    own = [str(layout.function) for layout in layouts if layout.own]

    assert sorted(own) == sorted(recipes.FUNCTIONS)
    assert all(layout.source.startswith("This project, ") == bool(layout.own) for layout in layouts)
