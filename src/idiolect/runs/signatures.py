"""Settings checked against real signatures; what is wrong is told in one sentence."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, create_model
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from idiolect.errors import UserError, did_you_mean

T = TypeVar("T")


def fields_of(checked: type) -> dict[str, FieldInfo]:
    """The fields of a pydantic dataclass, such as a method."""
    fields: dict[str, FieldInfo] = checked.__pydantic_fields__  # type: ignore[attr-defined]
    return fields


def alias_of(field: FieldInfo) -> str | None:
    """The short name of a field, if it has one."""
    return field.validation_alias if isinstance(field.validation_alias, str) else None


def spelled_out(checked: type, options: Mapping[str, Any]) -> dict[str, Any]:
    """The same options with every alias replaced by the field's name."""
    names = {alias_of(field): name for name, field in fields_of(checked).items()}
    return {names.get(option, option): value for option, value in options.items()}


def build(checked: type[T], options: Mapping[str, Any], where: str) -> T:
    """An instance of a pydantic dataclass; `where` is the settings' section, for the message."""
    known = list(fields_of(checked))
    options = spelled_out(checked, options)
    for option in options:
        require_known(option, known, where)
    try:
        return checked(**options)
    except ValidationError as error:
        raise UserError(sentence(error, where)) from error


def dump(instance: Any) -> dict[str, Any]:
    """A pydantic dataclass as plain data, from which `build` makes an equal instance."""
    plain: dict[str, Any] = TypeAdapter(type(instance)).dump_python(instance, mode="json", warnings=False)
    return plain


def check_arguments(
    function: Callable[..., Any], options: Mapping[str, Any], where: str, *, given: Iterable[str]
) -> dict[str, Any]:
    """Keyword options of a function, converted to what its signature says; `given` come from elsewhere."""
    model = _model_of(function, where, frozenset(given))
    if model is None:
        return dict(options)
    for option in options:
        require_known(option, list(model.model_fields), where)
    try:
        checked = model(**options)
    except ValidationError as error:
        raise UserError(sentence(error, where)) from error
    return {option: getattr(checked, option) for option in options}


@lru_cache  # to make one takes longer than to check with it
def _model_of(function: Callable[..., Any], where: str, given: frozenset[str]) -> type[BaseModel] | None:
    """What checks the options of a function; None: it takes any."""
    parameters = {
        name: parameter
        for name, parameter in inspect.signature(function, eval_str=True).parameters.items()
        if name not in given and parameter.kind is not parameter.VAR_POSITIONAL
    }
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return None
    shape: dict[str, Any] = {
        name: (
            Any if p.annotation is p.empty else p.annotation,
            ... if p.default is p.empty else p.default,
        )
        for name, p in parameters.items()
    }
    return create_model(where, __config__=ConfigDict(arbitrary_types_allowed=True), **shape)


def require_known(name: str, known: list[str], where: str) -> None:
    """Refuse an unknown setting, naming the nearest known ones."""
    if name not in known:
        full = f"{where}.{name}" if where else name
        choices = f"the settings there are {', '.join(known)}" if known else "there are no settings"
        raise UserError(f"{full} is not a setting{did_you_mean(name, known)}; {choices}")


def sentence(error: ValidationError, where: str) -> str:
    """The first thing that is wrong: field, value, and what would be right."""
    details = error.errors(include_url=False)
    first = details[0]
    field = str(first["loc"][0]) if first["loc"] else ""
    same = [detail for detail in details if detail["loc"][:1] == first["loc"][:1]]
    expectations = list(dict.fromkeys(_expectation(detail) for detail in same))
    path = ".".join(part for part in (where, field) if part)
    if not field:
        return f"{path}: {expectations[0]}"
    if first["type"] == "missing" and len(first["loc"]) == 1:
        return f"{path} is missing; give it as {path}=..."
    return f"{path}={_shown(first['input'])} is not possible: {' or '.join(expectations)}"


def _expectation(detail: ErrorDetails) -> str:
    match detail["type"]:
        case "missing":
            return f"{detail['loc'][-1]} is missing"
        case "unexpected_keyword_argument":
            return f"{detail['loc'][-1]} is not known there"
        case "union_tag_not_found" | "model_attributes_type":
            return "it must be a number or have a name, such as {name: per_round, initial: 0.1}"
        case "union_tag_invalid":
            return f"its name must be one of {detail['ctx']['expected_tags']}"
        case "dataclass_type":
            return f"settings of {detail['ctx']['class_name']}"
        case "int_parsing" | "int_type" | "int_from_float":
            return "it must be a whole number"
        case "sequence_str" | "list_type" | "tuple_type" | "is_instance_of":
            return "it must be a list, such as [200, 200]"
        case "float_parsing" | "float_type":
            return "it must be a number"
        case "value_error":
            return str(detail["ctx"]["error"])
        case _:
            return detail["msg"].replace("Input should", "it must")


def _shown(value: Any) -> str:
    if isinstance(value, dict) and list(value) == ["name"]:
        value = value["name"]
    text = str(value) if isinstance(value, str | int | float) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
