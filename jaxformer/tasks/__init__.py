"""What the command line can train: a task's configuration, and the way from it to a run and back.

A task is a module with `train`, `load`, `evaluate` and `average`; the training loop itself knows none.
"""

from jaxformer.tasks import builtin
from jaxformer.tasks.translation_config import TranslationConfig

TASKS = {"translation": TranslationConfig}
"""Configuration class by the task's name, as saved in a run's config.json."""

BUILTIN = {"demo": builtin.demo, "translation": builtin.translation}
"""Configurations by the name the command line knows them by."""
