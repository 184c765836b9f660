// libdcmi.so: device management. Usually asked by another process than the one that computes; it may be slow, refuse
// or hang (NPUSIM_DCMI_DELAY_MS, _FAIL, _HANG).
#include "abi/dcmi.h"
#include <time.h>
#include <unistd.h>
#include "abi/driver.h"
#include "calls.h"
#include "knobs.h"
#include "npusim.h"

namespace {

int devices_per_card() {
    const int64_t count = npusim_knob(Knob::DEVICES_PER_CARD);
    return count < 1 ? 1 : static_cast<int>(count);
}

int device_count() {
    uint32_t count = 0;
    drvGetDevNum(&count);
    return static_cast<int>(count);
}

int card_count() { return (device_count() + devices_per_card() - 1) / devices_per_card(); }

// The physical device, or -1.
int device_of(int card, int device) {
    if (card < 0 || device < 0 || device >= devices_per_card()) return -1;
    const int number = card * devices_per_card() + device;
    return number < device_count() ? number : -1;
}

// What every query does first; nonzero: what it returns.
int answer_or_misbehave() {
    if (npusim_knob(Knob::DCMI_HANG) != 0)
        for (;;) pause();
    if (const int64_t delay_ms = npusim_knob(Knob::DCMI_DELAY_MS); delay_ms > 0) {
        const timespec delay{delay_ms / 1000, delay_ms % 1000 * 1000000};
        nanosleep(&delay, nullptr);
    }
    return static_cast<int>(npusim_knob(Knob::DCMI_FAIL));
}

#define DCMI_CALL()                   \
    SIM_CALL(DCMI_INVALID_PARAMETER); \
    if (const int error = answer_or_misbehave()) return error

}  // namespace

int dcmi_init() {
    DCMI_CALL();
    return 0;
}

int dcmiv2_init() { return dcmi_init(); }

int dcmi_get_card_list(int* count, int* list, int length) {
    DCMI_CALL();
    if (count == nullptr || list == nullptr) return DCMI_INVALID_PARAMETER;
    *count = card_count() < length ? card_count() : length;
    for (int i = 0; i < *count; ++i) list[i] = i;
    return 0;
}

int dcmi_get_card_num_list(int* count, int* list, int length) { return dcmi_get_card_list(count, list, length); }

int dcmi_get_device_num_in_card(int card, int* count) {
    DCMI_CALL();
    if (card < 0 || card >= card_count() || count == nullptr) return DCMI_INVALID_PARAMETER;
    const int rest = device_count() - card * devices_per_card();
    *count = rest < devices_per_card() ? rest : devices_per_card();
    return 0;
}

int dcmi_get_device_id_in_card(int card, int* most, int* mcu, int* cpu) {
    DCMI_CALL();
    if (card < 0 || card >= card_count()) return DCMI_INVALID_PARAMETER;
    *most = devices_per_card();
    *mcu = *cpu = -1;  // this card has none
    return 0;
}

int dcmi_get_device_logic_id(int* logic, int card, int device) {
    DCMI_CALL();
    if (logic == nullptr || device_of(card, device) < 0) return DCMI_INVALID_PARAMETER;
    *logic = device_of(card, device);
    return 0;
}

int dcmi_get_device_hbm_info(int card, int device, dcmi_hbm_info* info) {
    DCMI_CALL();
    if (info == nullptr || device_of(card, device) < 0) return DCMI_INVALID_PARAMETER;
    uint64_t used = 0, total = 0;
    npusim_hbm_info(static_cast<uint32_t>(device_of(card, device)), &used, &total);
    *info = dcmi_hbm_info{};
    info->memory_size = total >> 20;
    info->memory_usage = used >> 20;
    return 0;
}

int dcmi_get_npu_proc_mem_info(int card, int device, dcmi_proc_mem_info* processes, int* count) {
    DCMI_CALL();
    if (processes == nullptr || count == nullptr || device_of(card, device) < 0) return DCMI_INVALID_PARAMETER;
    int pids[DCMI_MOST_PROCESSES];
    uint64_t bytes[DCMI_MOST_PROCESSES];
    *count = npusim_device_processes(static_cast<uint32_t>(device_of(card, device)), pids, bytes, DCMI_MOST_PROCESSES);
    for (int i = 0; i < *count; ++i) {
        processes[i].pid = pids[i];
        processes[i].usage = bytes[i];
    }
    return 0;
}
