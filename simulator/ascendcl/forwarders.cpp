// libascendcl.so: passes every function of functions.inc on to its twin; here calls are counted and made to fail.
#include "acl_rt_impl/functions.h"
#include "calls.h"

#define ACL(name, parameters, arguments) \
    SIM_API aclError name parameters {   \
        SIM_CALL(ACL_INTERNAL);          \
        return name##Impl arguments;     \
    }
#define ACL_ACCEPTED ACL
#define ACL_TEXT(name, parameters, arguments) \
    SIM_API const char* name parameters { return name##Impl arguments; }
#include "acl_rt_impl/functions.inc"
