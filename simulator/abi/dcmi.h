// libdcmi.so: device management. Whoever asks, it speaks of the whole card and of physical devices.
#pragma once

#include "abi/export.h"

struct dcmi_hbm_info {
    unsigned long long memory_size;  // MiB
    unsigned int frequency;
    unsigned long long memory_usage;  // MiB
    int temperature;
    unsigned int bandwidth_utilisation;
};
struct dcmi_proc_mem_info {
    int pid;
    unsigned long usage;  // bytes
};
enum : int { DCMI_MOST_PROCESSES = 64, DCMI_INVALID_PARAMETER = -8001 };

SIM_API int dcmi_init();
SIM_API int dcmiv2_init();
SIM_API int dcmi_get_card_list(int* count, int* list, int length);
SIM_API int dcmi_get_card_num_list(int* count, int* list, int length);
SIM_API int dcmi_get_device_num_in_card(int card, int* count);
SIM_API int dcmi_get_device_id_in_card(int card, int* most, int* mcu, int* cpu);
SIM_API int dcmi_get_device_logic_id(int* logic, int card, int device);
SIM_API int dcmi_get_device_hbm_info(int card, int device, dcmi_hbm_info* info);
SIM_API int dcmi_get_npu_proc_mem_info(int card, int device, dcmi_proc_mem_info* processes, int* count);
