// Source: the Ascend Transformer Boost library.
#include "hook/patch.h"

namespace memscope {

extern const HookTable kAtbHooks = {"atb", nullptr, 0};

}  // namespace memscope
