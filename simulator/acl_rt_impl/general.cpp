// AscendCL: start, end, versions, and what is only accepted.
#include <atomic>
#include <cstdio>
#include <cstring>
#include "acl_rt_impl/functions.h"
#include "knobs.h"
#include "npusim.h"

namespace {

constexpr const char* kVersion = "9.0.0";
constexpr int kAttributes[] = {0, 1, 2};
std::atomic<bool> g_is_initialised{false};

template <typename... Arguments>
aclError accepted(Arguments...) {
    return ACL_OK;
}

}  // namespace

#define ACL(name, parameters, arguments)
#define ACL_TEXT ACL
#define ACL_ACCEPTED(name, parameters, arguments) \
    aclError name##Impl parameters { return accepted arguments; }
#include "acl_rt_impl/functions.inc"
#undef ACL
#undef ACL_ACCEPTED
#undef ACL_TEXT

aclError aclInitImpl(const char* configuration) {
    npusim_trace("aclInit %s", configuration != nullptr ? configuration : "-");
    return g_is_initialised.exchange(true) ? ACL_REPEAT_INITIALIZE : ACL_OK;
}

aclError aclFinalizeImpl(void) {
    npusim_trace("aclFinalize");
    g_is_initialised = false;
    return ACL_OK;
}

const char* aclGetRecentErrMsgImpl(void) { return npusim_error_message(); }
const char* aclrtGetSocNameImpl(void) { return npusim_knob_text(Knob::SOC); }

aclError aclrtGetVersionImpl(int32_t* major, int32_t* minor, int32_t* patch) {
    *major = 1;
    *minor = 13;
    *patch = 0;
    return ACL_OK;
}

aclError aclsysGetVersionStrImpl(char*, char* version) {
    strcpy(version, kVersion);
    return ACL_OK;
}

aclError aclsysGetCANNVersionImpl(int, aclCANNPackageVersion* version) {
    memset(version, 0, sizeof *version);
    strcpy(version->version, kVersion);
    strcpy(version->major, "9");
    strcpy(version->minor, "0");
    strcpy(version->release, "0");
    return ACL_OK;
}

aclError aclGetCannAttributeListImpl(const int** list, size_t* count) {
    *list = kAttributes;
    *count = sizeof kAttributes / sizeof kAttributes[0];
    return ACL_OK;
}

aclError aclGetCannAttributeImpl(int attribute, int32_t* value) {
    *value = attribute == kAttributes[2] ? 0 : 1;
    return ACL_OK;
}

aclError aclrtGetSysParamOptImpl(int, int64_t* value) {
    *value = 0;
    return ACL_OK;
}
