// Python in a launched process whose interpreter did not run msmemscope.pth: a virtual environment without the
// package, `python -S`. The hook library then brings the package in itself.
#pragma once

namespace memscope {

// To be called when a module's PyInit_ function is looked up: the interpreter is up and this thread holds the GIL.
// Imports msmemscope.collect.bootstrap, once per process, unless it is there already. Whatever goes wrong stays
// inside: the program is then watched without Python stacks and steps.
void bring_python_side() noexcept;

}  // namespace memscope
