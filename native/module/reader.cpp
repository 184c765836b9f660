#include "module/bindings.h"

namespace memscope {
void bind_reader(pybind11::module_&) {}
}  // namespace memscope
