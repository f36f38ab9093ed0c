"""Names of a model that people know, and the catalog's."""

from megatron_operator.catalog import Catalog, hugging_face


def catalog_name(asked: str, catalog: Catalog) -> str:
    """The model by the catalog's name: also of Hugging Face's, and of a function of Megatron-Bridge."""
    if catalog.function(asked) is not None:
        return catalog.get(asked).name
    trained_by = hugging_face.entry_of(asked) or _of_source(asked, catalog)
    return trained_by or (asked.rpartition("/")[2].lower() if "/" in asked else asked)


def _of_source(asked: str, catalog: Catalog) -> str | None:
    """The shortest name of an entry whose source is this model, without its mode."""
    names = [
        entry.name.removesuffix("-sft").removesuffix("-lora")
        for entry in catalog
        if entry.source.partition(";")[0].lower() == asked.lower()
    ]
    return min(names, key=len, default=None)
