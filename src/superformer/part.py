"""The base of all settings."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Part(BaseModel):
    """A part of a recipe: a key that does not exist is an error, and what was read does not change."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)
