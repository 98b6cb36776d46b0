"""Every document by its file name in docs/reference/schemas."""

from __future__ import annotations

from .collectives import FabricTest
from .commission import Certificate, Commissioned, CommissionRecord, Fleet
from .mirror import Delivery, Mirror, MirrorContents
from .nightly import Changes, Heartbeat, Offenders, Past, SilenceList
from .plan import Plan, PlanChange, Restart
from .receipt import JournalEntry, Receipt, RestartMarker
from .snapshot import Snapshot
from .verdict import Bundle, CollectedResult, Refusal, Verdicts

DOCUMENTS: dict[str, type] = {
    "plan": Plan,
    "plan-change": PlanChange,
    "restart": Restart,
    "snapshot": Snapshot,
    "receipt": Receipt,
    "journal-entry": JournalEntry,
    "restart-marker": RestartMarker,
    "verdicts": Verdicts,
    "refusal": Refusal,
    "bundle": Bundle,
    "collected-result": CollectedResult,
    "changes": Changes,
    "past": Past,
    "heartbeat": Heartbeat,
    "silences": SilenceList,
    "offenders": Offenders,
    "mirror": Mirror,
    "mirror-contents": MirrorContents,
    "delivery": Delivery,
    "fabric-test": FabricTest,
    "commission-record": CommissionRecord,
    "certificate": Certificate,
    "commissioned": Commissioned,
    "fleet": Fleet,
}
