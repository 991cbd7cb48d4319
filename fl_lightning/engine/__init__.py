"""Plumbing of a federation: messages, client requests, transports, ledger, checkpoints, seeds. No algorithm lives here."""

from fl_lightning.engine.in_process import InProcess
from fl_lightning.engine.transport import ClientSpec, Engine
from fl_lightning.engine.upload_transforms import ClipNorm, UploadTransform
from fl_lightning.engine.worker_processes import WorkerProcesses

__all__ = ["ClientSpec", "ClipNorm", "Engine", "InProcess", "UploadTransform", "WorkerProcesses"]
