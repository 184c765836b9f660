// libascendcl.so: declares the functions of acl_rt_impl/functions.inc, for programs that call them. Not part of cann.h:
// tests of hooks declare what they call themselves.
#pragma once

#include "abi/acl.h"

#define ACL(name, parameters, arguments) SIM_API aclError name parameters;
#define ACL_ACCEPTED ACL
#define ACL_TEXT(name, parameters, arguments) SIM_API const char* name parameters;
#include "acl_rt_impl/functions.inc"
#undef ACL
#undef ACL_ACCEPTED
#undef ACL_TEXT
