"""tcuda.torch without PyTorch: what is refused, and TCUDA_TORCH. The rest needs a GPU
(scripts/gpu/torch_backend.py)."""

import importlib
import os
import pathlib
import subprocess
import sys
import types
import unittest
from unittest import mock

import tcuda.torch

ROOT = pathlib.Path(__file__).resolve().parents[2]


def pytorch(version="2.11.0+cu130", cuda="13.0", is_initialized=False):
    """A module that has what enable() looks at first."""
    module = types.ModuleType("torch")
    module.__version__ = version
    module.version = types.SimpleNamespace(cuda=cuda, git_version="0")
    module.cuda = types.SimpleNamespace(is_initialized=lambda: is_initialized)
    return mock.patch.dict(sys.modules, torch=module)


class Enable(unittest.TestCase):
    def refused(self, text, **what):
        with pytorch(**what), self.assertRaisesRegex(RuntimeError, text):
            tcuda.torch.enable()
        self.assertFalse(tcuda.torch.is_enabled())
        self.assertFalse(tcuda.torch.is_host_enabled())

    def test_refused(self):
        self.refused("PyTorch 2.8.1 is too old .*2.9 or later", version="2.8.1")
        self.refused("without CUDA", cuda=None)
        self.refused("has used CUDA already", is_initialized=True)

    def test_no_library(self):
        with pytorch(version="2.9.0a0+git1"), self.assertRaisesRegex(FileNotFoundError, "no/such"):
            tcuda.torch.enable("no/such/library")

    def test_standard_of_the_headers(self):
        for version, standard in (((2, 9), "17"), ((2, 13), "17"), ((2, 14), "20"), ((3, 0), "20")):
            self.assertIn(f"-std=c++{standard}", tcuda.torch._options(version, 1))
        self.assertIn("-D_GLIBCXX_USE_CXX11_ABI=0", tcuda.torch._options((2, 9), 0))

    def test_errors_of_the_backend(self):
        def install(error, capacity):
            error.value = b"why not"
            return 1

        with mock.patch("ctypes.PyDLL", return_value=types.SimpleNamespace(install=install)):
            with self.assertRaisesRegex(RuntimeError, "^why not$"):
                tcuda.torch._call(types.SimpleNamespace(_name="backend.so"), "install")


class Environment(unittest.TestCase):
    """What PyTorch calls at the end of its import."""

    def loaded(self, value):
        import _tcuda_torch

        with mock.patch.dict(os.environ, TCUDA_TORCH=value), \
                mock.patch.object(tcuda.torch, "enable") as enable:
            _tcuda_torch.load()
        return [call.kwargs for call in enable.call_args_list]

    def test_values(self):
        self.assertEqual(self.loaded(""), [])
        self.assertEqual(self.loaded("0"), [])
        self.assertEqual(self.loaded("1"), [{"host": False}])
        self.assertEqual(self.loaded("host"), [{"host": True}])
        with self.assertRaisesRegex(ValueError, "'on'"):
            self.loaded("on")

    def test_without_it_tcuda_is_not_loaded(self):
        program = "import sys, _tcuda_torch; _tcuda_torch.load(); print('tcuda' in sys.modules)"
        environment = {key: value for key, value in os.environ.items() if key != "TCUDA_TORCH"}
        done = subprocess.run([sys.executable, "-c", program], env=environment, text=True,
                              capture_output=True, check=True)
        self.assertEqual(done.stdout, "False\n")

    @unittest.skipIf(sys.version_info < (3, 11), "Python 3.10 cannot read TOML")
    def test_entry_point(self):
        import tomllib

        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        (entry,) = project["entry-points"]["torch.backends"].values()
        module, function = entry.split(":")
        self.assertTrue(callable(getattr(importlib.import_module(module), function)))


if __name__ == "__main__":
    unittest.main()
