// Declares the Impl twin of every function of functions.inc.
#pragma once

#include "abi/acl.h"

#define ACL(name, parameters, arguments) SIM_API aclError name##Impl parameters;
#define ACL_ACCEPTED ACL
#define ACL_TEXT(name, parameters, arguments) SIM_API const char* name##Impl parameters;
#include "acl_rt_impl/functions.inc"
#undef ACL
#undef ACL_ACCEPTED
#undef ACL_TEXT
