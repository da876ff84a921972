"""Spack's recipe: `spack repo add packaging/spack`, then `spack dev-build py-dlio-toolkit@0.1.0` in a checkout."""

from spack.package import *


class PyDlioToolkit(PythonPackage):
    """Packs small image files into shards, stages them to node-local storage, feeds data-parallel trainers."""

    pypi = "dlio-toolkit/dlio_toolkit-0.1.0.tar.gz"

    license("Apache-2.0")

    version("0.1.0")  # from a checkout; a release adds its sha256

    variant("tfrecord", default=True, description="TFRecord and LMDB")
    variant("hdf5", default=False, description="HDF5")
    variant("mpi", default=False, description="packing and staging by MPI")
    variant("torch", default=False, description="loaders for torch")

    depends_on("cxx", type="build")
    depends_on("python@3.11:", type=("build", "run"))
    depends_on("py-scikit-build-core@0.10:", type="build")
    depends_on("py-nanobind@2.2:", type="build")
    depends_on("cmake@3.18:", type="build")
    depends_on("libdeflate", type=("build", "link"))
    depends_on("libjpeg-turbo@2:", type=("build", "link"))

    depends_on("py-msgspec@0.19:", type=("build", "run"))
    depends_on("py-numpy@1.26:", type=("build", "run"))
    depends_on("py-pillow@10:", type=("build", "run"))
    depends_on("py-tqdm@4.60:", type=("build", "run"))
    depends_on("py-xxhash@3:", type=("build", "run"))
    depends_on("py-blake3@1:", type=("build", "run"))
    depends_on("py-crc32c@2.4:", type=("build", "run"))

    depends_on("py-protobuf@5:", type=("build", "run"), when="+tfrecord")
    depends_on("py-h5py@3.10:", type=("build", "run"), when="+hdf5")
    depends_on("py-mpi4py@4:", type=("build", "run"), when="+mpi")
    depends_on("py-torch@2.2:", type=("build", "run"), when="+torch")

    import_modules = ["dlio", "dlio.native._core", "dlio.native._jpeg", "dlio.native._png"]

    def setup_build_environment(self, env):
        env.set("DLIO_SYSTEM_JPEG", "1")
