// libacl_op_compiler.so: single-operator (graph engine) path. Only recorded: nothing is computed.
#include "cann.h"
#include <cstring>
typedef int aclError;
struct aclopAttr { int dummy; };
SIM_API aclopAttr *aclopCreateAttr() { return new aclopAttr{}; }
SIM_API void aclopDestroyAttr(const aclopAttr *a) { delete a; }
SIM_API aclError aclSetCompileopt(int o, const char *v) { npusim_trace("aclSetCompileopt %d=%s", o, v); return 0; }
SIM_API size_t aclGetCompileoptSize(int) { return 8; }
SIM_API aclError aclGetCompileopt(int, char *v, size_t n) { if (n) strncpy(v, "disable", n); return 0; }
SIM_API aclError aclopCompileAndExecute(const char *op, int, const void *const *, const void *const *, int, const void *const *, void *const *, const aclopAttr *, int, int, const char *, void *)
{
    npusim_trace("aclopCompileAndExecute %s: NOT SIMULATED", op); return 100024;
}
SIM_API aclError aclopCompileAndExecuteV2(const char *op, int, void **, void **, int, void **, void **, aclopAttr *, int, int, const char *, void *)
{
    npusim_trace("aclopCompileAndExecuteV2 %s: NOT SIMULATED", op); return 100024;
}
