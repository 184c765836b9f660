// Source: AscendCL: initialisation, page-locked host memory, requests that failed.
#include "hook/patch.h"

namespace memscope {

extern const HookTable kAclHooks = {"acl", nullptr, 0};

}  // namespace memscope
