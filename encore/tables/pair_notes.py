"""Notes on pairs that readers of `encore browse` write: STUDY/notes.json, a text by pair id."""

from __future__ import annotations

import json

from encore.core.errors import EncoreError, InputError
from encore.core.files import write_json
from encore.data.study import Study

NOTES_FILE = "notes.json"
MAX_CHARACTERS = 2_000


def read_notes(study: Study) -> dict[str, str]:
    """Return the notes by pair id.

    Raises:
        EncoreError: The file cannot be read.
    """
    path = study.path / NOTES_FILE
    try:
        return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}
    except (OSError, ValueError, TypeError) as error:
        raise EncoreError(f"{path}: cannot be read ({error}); mend it or move it away") from error


def write_note(study: Study, pair_id: str, note: str) -> None:
    """Replace the note on a pair; an empty text removes it.

    Raises:
        InputError: The text is too long.
        EncoreError: The file cannot be read or written.
    """
    if len(note) > MAX_CHARACTERS:
        raise InputError(
            f"note of {len(note):,} characters: expected at most {MAX_CHARACTERS:,}; shorten it"
        )
    notes = read_notes(study) | {pair_id: note}
    write_json(study.path / NOTES_FILE, {key: text for key, text in sorted(notes.items()) if text})
