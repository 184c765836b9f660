// libacl_op_compiler.so: the old path of operators, by name through the graph engine. Options are accepted; operators
// are refused by name, because nothing here computes them.
#include <cstdio>
#include <cstring>
#include <mutex>
#include <string>
#include "abi/acl.h"
#include "abi/driver.h"
#include "abi/runtime.h"
#include "calls.h"
#include "knobs.h"
#include "npusim.h"

struct aclopAttr {
    int unused;
};

namespace {

constexpr int ACL_OP_JIT_COMPILE = 10;
constexpr const char* kOptionValue = "disable";
constexpr uint64_t kGraphEngineBytes = 8 << 20;  // our own figure

// With NPUSIM_CANN_MEMORY the graph engine takes a block of the current device, once per process, and keeps it.
void take_graph_engine_memory() {
    static std::once_flag once;
    int32_t device = -1;
    if (npusim_knob(Knob::CANN_MEMORY) == 0 || rtGetDevice(&device) != RT_OK) return;
    std::call_once(once, [] {
        void* block = nullptr;
        rtMalloc(&block, kGraphEngineBytes, 0, MODULE_GE);
    });
}

aclError refuse(const char* operation) {
    char text[256];
    snprintf(text, sizeof text, "the simulated CANN has no operator %s", operation);
    npusim_set_error_message(text);
    fprintf(stderr, "[npusim] %s; see \"Adding an operator\" in simulator/opapi/README.md\n", text);
    return ACL_OP_NOT_FOUND;
}

}  // namespace

SIM_API aclopAttr* aclopCreateAttr() { return new aclopAttr{}; }
SIM_API void aclopDestroyAttr(const aclopAttr* attribute) { delete attribute; }

SIM_API aclError aclSetCompileopt(int option, const char* value) {
    npusim_trace("aclSetCompileopt %d=%s", option, value);
    take_graph_engine_memory();
    // This is how torch_npu begins an operator of the old path, in the line that needs it: refused here, it fails
    // there.
    const std::string missing = npusim_missing_operator();
    if (option == ACL_OP_JIT_COMPILE && !missing.empty()) {
        npusim_found_operator();
        return refuse(missing.c_str());
    }
    return ACL_OK;
}

SIM_API size_t aclGetCompileoptSize(int) { return strlen(kOptionValue) + 1; }

SIM_API aclError aclGetCompileopt(int, char* value, size_t size) {
    if (size < strlen(kOptionValue) + 1) return ACL_INVALID_PARAM;
    strcpy(value, kOptionValue);
    return ACL_OK;
}

SIM_API aclError aclopCompileAndExecute(const char* operation, int, const void* const*, const void* const*, int,
                                        const void* const*, void* const*, const aclopAttr*, int, int, const char*,
                                        void*) {
    SIM_CALL(ACL_OP_NOT_FOUND);
    return refuse(operation);
}

SIM_API aclError aclopCompileAndExecuteV2(const char* operation, int, void**, void**, int, void**, void**, aclopAttr*,
                                          int, int, const char*, void*) {
    SIM_CALL(ACL_OP_NOT_FOUND);
    return refuse(operation);
}
