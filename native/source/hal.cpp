// Source: the Ascend driver (libascend_hal.so), as events of pool HAL.
#include "hook/patch.h"

namespace memscope {

extern const HookTable kHalHooks = {"hal", nullptr, 0};

}  // namespace memscope
