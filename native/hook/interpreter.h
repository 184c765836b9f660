// Python in a launched process: what the hook library has to bring in itself.
//   * The package, where the interpreter did not run msmemscope.pth: a virtual environment without it, `python -S`.
//   * Python stacks and steps, where no framework is imported that collect/bootstrap.py waits for (CuPy, JAX, numba,
//   plain
//     ctypes). It is told as soon as the process looks up a function that is watched, which happens before the first
//     call and, from Python, while the GIL is held. Failing that, by the first event, as soon as the interpreter comes
//     to it.
#pragma once

namespace memscope {

// To be called when a module's PyInit_ function is looked up: the interpreter is up and this thread holds the GIL.
// Imports msmemscope.collect.rank.bootstrap, once per process, unless it is there already. Whatever goes wrong stays
// inside: the program is then watched without Python stacks and steps.
void bring_python_side() noexcept;

// The process has come by a function that allocates. Attaches at once when this thread holds the GIL; may load
// libraries, so not from a hook.
void attach_python() noexcept;

// Called by the first event, from within a hook: asks the interpreter, if there is one, to attach when it next can.
// Takes no lock of the loader's and does not wait for the GIL.
void ask_python_to_attach() noexcept;

// Notes where the interpreter's functions are; before any hook, and again when objects were loaded.
void find_interpreter() noexcept;

}  // namespace memscope
