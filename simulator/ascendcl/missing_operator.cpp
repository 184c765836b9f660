// libascendcl.so: which operator torch_npu has just looked for in vain.
//
// torch_npu looks an aclnn operator up by name. Where it is missing it says so in a warning and goes on with the old
// path, which enqueues the operator under another name; the failure of that surfaces later, at a line that has nothing
// to do with it. The first thing the old path does on the program's own thread is to set a compile option: there
// libacl_op_compiler.so asks for the name that is kept here.
#include "ascendcl/missing_operator.h"
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include "npusim.h"

namespace {

constexpr const char* kFallsBack = "Will call %s";  // "[PTA]:%s or %sGetWorkspaceSize not in %s, … Will call %s"

thread_local char t_missing[128];

// torch_npu formats warnings only when asked to. Here rather than in a launcher: the library is loaded before
// torch_npu reads the variable, however the simulator's directory got into the environment.
[[gnu::constructor]] void ask_for_warnings() { setenv("ASCEND_GLOBAL_LOG_LEVEL", "2", 0); }

}  // namespace

void note_missing_operator(const char* format, va_list arguments) {
    if (strstr(format, kFallsBack) == nullptr) return;
    const char* name = va_arg(arguments, const char*);
    snprintf(t_missing, sizeof t_missing, "%s", name);
}

const char* npusim_missing_operator(void) { return t_missing; }
void npusim_found_operator(void) { t_missing[0] = '\0'; }
