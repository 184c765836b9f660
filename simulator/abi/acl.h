// libascendcl.so: error codes and structures of AscendCL. The functions are listed in acl_rt_impl/functions.inc.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include "abi/export.h"

typedef int aclError;
enum : int {
    ACL_OK = 0,
    ACL_INVALID_PARAM = 100000,
    ACL_UNINITIALIZE = 100001,
    ACL_REPEAT_INITIALIZE = 100002,
    ACL_OP_NOT_FOUND = 100024,
    ACL_RT_NO_DEVICE_SET = 107002,
    ACL_RT_MEMORY_ALLOCATION = 207001,
    ACL_INTERNAL = 500000,
};

enum : uint32_t { ACL_HOST_REG_PINNED = 0x10000000 };  // flag of aclrtHostRegisterV2

enum : int { ACL_LOCATION_HOST = 0, ACL_LOCATION_DEVICE = 1, ACL_LOCATION_UNREGISTERED = 2 };
struct aclrtPtrAttributes {
    uint32_t id;
    int type;
    uint32_t page_size;
    uint32_t reserved[4];
};
struct aclrtPhysicalMemProp {
    int handle_type;
    int allocation_type;
    int memory_attribute;
    uint32_t id;  // device, logical
    int location;
    uint64_t reserved;
};
struct aclCANNPackageVersion {
    char version[128], major[64], minor[64], release[64], patch[64], reserved[128];
};
enum : int { ACL_MEMCPY_HOST_TO_DEVICE = 1, ACL_MEMCPY_DEVICE_TO_HOST = 2, ACL_MEMCPY_DEVICE_TO_DEVICE = 3 };
typedef void (*aclrtCallback)(void* context);
