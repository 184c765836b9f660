// A libdcmi.so of two cards whose figures and faults the test sets: fake_* below.
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

extern "C" {
std::atomic<int> fake_init{0};     // what dcmi_init returns
std::atomic<int> fake_hbm{0};      // what dcmi_get_device_hbm_info returns
std::atomic<int> fake_hang{0};     // dcmi_get_device_hbm_info does not return while this is 1
std::atomic<int> fake_slow_ms{0};  // every call for a card's memory takes so long
std::atomic<int> fake_calls{0};
int fake_pids[4] = {0, 0, 0, 0};  // two of each card
unsigned long fake_bytes[4] = {0, 0, 0, 0};
unsigned long long fake_used_mib[2] = {100, 200};

struct dcmi_hbm_info {
    unsigned long long memory_size;
    unsigned freq;
    unsigned long long memory_usage;
    int temp;
    unsigned bandwidth;
};
struct dcmi_proc_mem_info {
    int pid;
    unsigned long bytes;
};

int dcmi_init() { return fake_init; }
int dcmi_get_card_list(int* count, int* list, int) {
    *count = 2;
    list[0] = 0;
    list[1] = 7;
    return 0;
}
int dcmi_get_device_num_in_card(int, int* count) {
    *count = 1;
    return 0;
}
// Card 0 is device 4 and card 7 is device 6.
int dcmi_get_device_logic_id(int* logic, int card, int) {
    *logic = card == 0 ? 4 : 6;
    return 0;
}
int dcmi_get_device_hbm_info(int card, int, dcmi_hbm_info* info) {
    ++fake_calls;
    while (fake_hang != 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::this_thread::sleep_for(std::chrono::milliseconds(fake_slow_ms));
    std::memset(info, 0, sizeof *info);
    info->memory_size = 65536;
    info->memory_usage = fake_used_mib[card == 0 ? 0 : 1];
    return fake_hbm;
}
int dcmi_get_npu_proc_mem_info(int card, int, dcmi_proc_mem_info* list, int* count) {
    const int first = card == 0 ? 0 : 2;
    *count = 0;
    for (int i = first; i < first + 2; ++i)
        if (fake_pids[i] != 0) list[(*count)++] = {fake_pids[i], fake_bytes[i]};
    return 0;
}
}
