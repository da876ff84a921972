"""For Spack before 1.0, which has no recipe of its own for msgspec."""

from spack.package import *


class PyMsgspec(PythonPackage):
    """Reads and writes JSON and MessagePack, and checks them against types."""

    homepage = "https://jcristharif.com/msgspec/"
    pypi = "msgspec/msgspec-0.19.0.tar.gz"

    license("BSD-3-Clause")

    version("0.19.0", sha256="604037e7cd475345848116e89c553aa9a233259733ab51986ac924ab1b976f8e")

    depends_on("c", type="build")
    depends_on("python@3.9:3.13", type=("build", "run"))
    depends_on("py-setuptools", type="build")
