"""What Spack 0.23 lacks of dlio's dependencies; from Spack 1.0 on its own recipe takes the place of this one."""

from spack.package import *


class PyMsgspec(PythonPackage):
    """Reads and writes JSON and MessagePack, and checks them against types."""

    homepage = "https://jcristharif.com/msgspec/"
    pypi = "msgspec/msgspec-0.22.0.tar.gz"

    license("BSD-3-Clause")

    version("0.22.0", sha256="0a13624a4969159fe35d8c2a3d377b2b61bbd8585e327440d5e52725affcce38")

    depends_on("c", type="build")
    depends_on("python@3.10:", type=("build", "run"))
    depends_on("py-setuptools@80:", type="build")
    depends_on("py-setuptools-scm@8:", type="build")
