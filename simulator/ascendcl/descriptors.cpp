// libascendcl.so: what has no twin: log lines, data buffers, descriptors of tensors for the old operator path.
#include <cstdarg>
#include <cstdio>
#include <string>
#include <vector>
#include "abi/acl.h"
#include "ascendcl/missing_operator.h"
#include "knobs.h"
#include "npusim.h"

struct aclDataBuffer {
    void* data;
    size_t size;
};

struct aclTensorDesc {
    int type;
    int format;
    std::vector<int64_t> sizes;
    std::string name;
    int placement = 0;
};

SIM_API void aclAppLog(int level, const char* function, const char*, uint32_t line, const char* format, ...) {
    static const int64_t least = npusim_knob(Knob::APPLOG);
    va_list arguments;
    va_start(arguments, format);
    note_missing_operator(format, arguments);
    va_end(arguments);
    if (level < least) return;
    va_start(arguments, format);
    char text[1024];
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fprintf(stderr, "[acl %d] %s:%u %s\n", level, function, line, text);
}

SIM_API aclDataBuffer* aclCreateDataBuffer(void* data, size_t size) { return new aclDataBuffer{data, size}; }
SIM_API void* aclGetDataBufferAddr(const aclDataBuffer* buffer) { return buffer->data; }
SIM_API aclError aclDestroyDataBuffer(const aclDataBuffer* buffer) {
    delete buffer;
    return ACL_OK;
}

SIM_API aclTensorDesc* aclCreateTensorDesc(int type, int count, const int64_t* sizes, int format) {
    return new aclTensorDesc{type, format, std::vector<int64_t>(sizes, sizes + count), {}, 0};
}
SIM_API void aclDestroyTensorDesc(const aclTensorDesc* tensor) { delete tensor; }
SIM_API int aclGetTensorDescType(const aclTensorDesc* tensor) { return tensor->type; }
SIM_API int aclGetTensorDescFormat(const aclTensorDesc* tensor) { return tensor->format; }
SIM_API size_t aclGetTensorDescNumDims(const aclTensorDesc* tensor) { return tensor->sizes.size(); }
SIM_API aclError aclGetTensorDescDimV2(const aclTensorDesc* tensor, size_t dimension, int64_t* size) {
    if (dimension >= tensor->sizes.size()) return ACL_INVALID_PARAM;
    *size = tensor->sizes[dimension];
    return ACL_OK;
}
SIM_API void aclSetTensorDescName(aclTensorDesc* tensor, const char* name) { tensor->name = name; }
SIM_API aclError aclSetTensorFormat(aclTensorDesc*, int) { return ACL_OK; }
SIM_API aclError aclSetTensorShape(aclTensorDesc*, int, const int64_t*) { return ACL_OK; }
SIM_API aclError aclSetTensorPlaceMent(aclTensorDesc* tensor, int placement) {
    tensor->placement = placement;
    return ACL_OK;
}
