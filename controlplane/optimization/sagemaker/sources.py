"""Input of SageMaker jobs: an existing S3 prefix, or a copy of other sources in the target's store."""

from __future__ import annotations

import io
from collections.abc import Callable

from controlplane.deployments.provisioners.sagemaker.archives import Store, checkpoint_files, checkpoint_put
from controlplane.optimization.models import OPEN, OptimizationJob
from controlplane.optimization.outputs import folder_remove
from controlplane.optimization.prompt_sets import prompts_read
from controlplane.optimization.sagemaker.options import RemoteOptions


class Uploads:
    """Of one job. What is there already is not sent again; jobs over one checkpoint share its copy."""

    def __init__(self, job: OptimizationJob, store: Store) -> None:
        self._job, self._store = job, store

    @property
    def _folder(self) -> str:
        return f"optimization-sources/{self._job.checkpoint_sha256[:24]}"

    @property
    def _texts(self) -> str:
        return f"optimization-texts/{self._job.prompts_id}"

    def weights(self, options: RemoteOptions, *, heartbeat: Callable[[], None]) -> str:
        """The s3:// prefix; "" where SageMaker reads one of its own models.

        Raises:
            InvalidInputError, UnavailableError: the checkpoint cannot be read.
            ProvisioningError: the store cannot be written.
        """
        if options.model:
            return ""
        source = options.weights or self._job.base_model.source
        if source.startswith("s3://"):
            return source
        there = self._store.keys(self._folder)
        for name in checkpoint_files(source):
            heartbeat()
            if (key := f"{self._folder}/{name}") not in there:
                checkpoint_put(self._store, source, name, key)
        return self._store.url(f"{self._folder}/")

    def training(self) -> str:
        """The s3:// prefix of the job's texts; "" without any. Raises as `weights` does."""
        if self._job.prompts is None:
            return ""
        self._store.put(f"{self._texts}/texts.jsonl", io.BytesIO(prompts_read(prompts=self._job.prompts)))
        return self._store.url(f"{self._texts}/")

    def clear(self) -> None:
        """Removes the copies that no other job under way reads. Raises ProvisioningError."""
        others = OptimizationJob.objects.filter(target=self._job.target, status__in=OPEN).exclude(
            pk=self._job.pk
        )
        if not others.filter(checkpoint_sha256=self._job.checkpoint_sha256).exists():
            folder_remove(self._store, self._store.url(f"{self._folder}/"))
        if self._job.prompts_id and not others.filter(prompts=self._job.prompts_id).exists():
            folder_remove(self._store, self._store.url(f"{self._texts}/"))
