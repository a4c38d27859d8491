"""Client states on disk, for more clients than fit in memory.

One file holds rows of equal size, one state each; an index in memory says which slot of the file holds a
client's state. A new state never overwrites the old one: it goes to a free slot, and the index is changed.
`save` writes the index only; the slots that the indices of checkpoints name, as long as their folders are
there, and of one that is saved again the two last, are not free, so whatever happens after `save`, or while
the folder of a checkpoint is being put in its place, the states of a checkpoint are all still there. Rows
are read and written by file operations, not mapped, so that the process does not grow with the file.
"""

import os
from pathlib import Path

import torch
from torch import Tensor

from idiolect.core import tree
from idiolect.core.device import to_host
from idiolect.core.exchange import ClientState
from idiolect.errors import UserError
from idiolect.store.files import TEMPORARY, clear_write_errors, read_tensors, write_tensors

_ROWS = "clients.rows"
_INDEX = "clients.safetensors"
_NOWHERE = -1


class DiskStore:
    """All client states in one file of a folder; `clients` is how many there can be."""

    def __init__(self, clients: int, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / _ROWS
        self.slots = torch.full((clients,), _NOWHERE)  # the slot of each client's state
        self._saved: dict[Path, list[Tensor]] = {}  # checkpoint -> the last two saved there, newest first
        self._protected: set[int] = set()  # the slots that these name
        self._free: list[int] = []
        self._end = 0  # slots from here on have never been used
        self._layout: _Layout | None = None
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            os.close(self._file)

    def known(self, ids: Tensor) -> Tensor:
        """Which of the clients have a state."""
        return self.slots[ids] != _NOWHERE

    def get(self, ids: Tensor) -> ClientState:
        """The stacked states of known clients."""
        assert self._layout is not None, "nothing is known before the first state is put or loaded"
        states = self._layout.empty(len(ids))
        for place, slot in enumerate(self.slots[ids].tolist()):
            self._layout.scatter(self._read(slot, self._layout.row_bytes), states, place)
        return states

    def put(self, ids: Tensor, states: ClientState) -> None:
        """Keep states: each in a slot that neither a client nor a checkpoint needs."""
        states = to_host(states)
        if self._layout is None:
            self._layout = _Layout(states)
        layout = self._layout
        layout.check(states)
        for place, number in enumerate(ids.tolist()):
            slot = self._take_slot()
            self._write(slot, layout.gather(states, place), layout.row_bytes)
            self._release(int(self.slots[number]))
            self.slots[number] = slot

    def save(self, folder: Path) -> None:
        """Write the index into a folder, after the rows it names are safely on disk."""
        with clear_write_errors(self.path):
            os.fsync(self._file)
        write_tensors(folder / _INDEX, {"slots": self.slots, "row_bytes": torch.tensor(self._row_bytes)})
        self._protect(folder, self.slots.clone())

    def load(self, folder: Path, template: ClientState) -> None:
        """Go back to what `save` wrote there; `template` is any stacked state of the method."""
        index = read_tensors(folder / _INDEX)
        slots, row_bytes = index["slots"], int(index["row_bytes"])
        if (slots != _NOWHERE).any():
            self._layout = _Layout(template)
            needed = (int(slots.max()) + 1) * row_bytes
            if self._layout.row_bytes != row_bytes or os.fstat(self._file).st_size < needed:
                raise UserError(
                    f"{str(self.path)!r} does not hold the client states of the checkpoint {str(folder)!r}; "
                    "put back the file that was beside it"
                )
        self.slots = slots
        self._protect(folder, slots.clone())

    @property
    def _row_bytes(self) -> int:
        return 0 if self._layout is None else self._layout.row_bytes

    def _protect(self, folder: Path, slots: Tensor) -> None:
        checkpoint = folder.with_name(folder.name.removeprefix(TEMPORARY))
        kept = {path: saved for path, saved in self._saved.items() if path.is_dir()}
        self._saved = {**kept, checkpoint: [slots, *self._saved.get(checkpoint, [])][:2]}
        self._find_free_slots()

    def _find_free_slots(self) -> None:
        """Slots that neither the present index nor the saved ones name, the lowest to be used first."""
        saved = torch.cat([slots for pair in self._saved.values() for slots in pair])
        used = torch.cat([self.slots, saved]).unique()
        self._end = int(used.max()) + 1
        free = torch.ones(self._end, dtype=torch.bool)
        free[used[used != _NOWHERE]] = False
        self._free = free.nonzero()[:, 0].flip(0).tolist()
        self._protected = set(saved.tolist())

    def _take_slot(self) -> int:
        if self._free:
            return self._free.pop()
        self._end += 1
        return self._end - 1

    def _release(self, slot: int) -> None:
        """A client has left a slot: it is free unless a checkpoint needs it."""
        if slot != _NOWHERE and slot not in self._protected:
            self._free.append(slot)

    def _read(self, slot: int, size: int) -> Tensor:
        row = torch.empty(size, dtype=torch.uint8)
        done = 0
        while done < size:
            read = os.preadv(self._file, [row.numpy().data[done:]], slot * size + done)
            if not read:
                raise UserError(f"{str(self.path)!r} is damaged: it ends before row {slot} does")
            done += read
        return row

    def _write(self, slot: int, row: Tensor, size: int) -> None:
        content, done = row.numpy().data, 0
        with clear_write_errors(self.path):
            while done < size:
                done += os.pwrite(self._file, content[done:], slot * size + done)


class _Layout:
    """How a state lies in a row: its leaves one after the other, as bytes."""

    def __init__(self, stacked: ClientState) -> None:
        self.like = tree.map_tree(lambda leaf: leaf[:0].contiguous().clone(), stacked)
        self.row_bytes = sum(self._sizes(stacked))

    def _sizes(self, stacked: ClientState) -> list[int]:
        return [leaf.shape[1:].numel() * leaf.element_size() for leaf in tree.leaves(stacked)]

    def check(self, stacked: ClientState) -> None:
        """States must keep their types and shapes over a run."""
        for kept, new in zip(tree.leaves(self.like), tree.leaves(stacked, self.like), strict=True):
            if (kept.dtype, kept.shape[1:]) != (new.dtype, new.shape[1:]):
                raise TypeError(
                    f"a client state changed from {kept.dtype}{list(kept.shape[1:])} "
                    f"to {new.dtype}{list(new.shape[1:])}"
                )

    def empty(self, count: int) -> ClientState:
        """Room for stacked states."""
        return tree.map_tree(lambda leaf: leaf.new_empty(count, *leaf.shape[1:]), self.like)

    def gather(self, stacked: ClientState, place: int) -> Tensor:
        """One state as bytes."""
        leaves = tree.leaves(stacked, self.like)
        parts = [leaf[place].contiguous().reshape(-1).view(torch.uint8) for leaf in leaves]
        return torch.cat(parts) if parts else torch.empty(0, dtype=torch.uint8)

    def scatter(self, row: Tensor, stacked: ClientState, place: int) -> None:
        """Bytes into one place of stacked states."""
        leaves = tree.leaves(stacked)
        for leaf, part in zip(leaves, row.split(self._sizes(stacked)), strict=True):
            leaf[place].reshape(-1).view(torch.uint8).copy_(part)
