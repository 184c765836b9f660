// libdcmi.so: device management queries.
#include "cann.h"
#include <cstring>
#include <unistd.h>
SIM_API int dcmi_init() { return 0; }
SIM_API int dcmiv2_init() { return 0; }
SIM_API int dcmi_get_card_list(int *n, int *list, int len) { uint32_t c; drvGetDevNum(&c); *n = (int)c; for (int i = 0; i < len && i < (int)c; i++) list[i] = i; return 0; }
SIM_API int dcmi_get_card_num_list(int *n, int *list, int len) { return dcmi_get_card_list(n, list, len); }
SIM_API int dcmi_get_device_num_in_card(int, int *n) { *n = 1; return 0; }
SIM_API int dcmi_get_device_id_in_card(int, int *max, int *mcu, int *cpu) { *max = 1; *mcu = -1; *cpu = -1; return 0; }
SIM_API int dcmi_get_device_logic_id(int *l, int card, int) { *l = card; return 0; }
struct dcmi_hbm_info { unsigned long long memory_size; unsigned freq; unsigned long long memory_usage; int temp; unsigned bw; };
SIM_API int dcmi_get_device_hbm_info(int card, int, dcmi_hbm_info *i) { uint64_t u, t; npusim_hbm_info((uint32_t)card, &u, &t); memset(i, 0, sizeof *i); i->memory_size = t >> 20; i->memory_usage = u >> 20; return 0; }
struct dcmi_proc_mem_info { int pid; unsigned long usage; };
SIM_API int dcmi_get_npu_proc_mem_info(int card, int, dcmi_proc_mem_info *p, int *n) { uint64_t u, t; npusim_hbm_info((uint32_t)card, &u, &t); p[0].pid = getpid(); p[0].usage = u; *n = 1; return 0; }
