#include "ascend_hal/report.h"
#include <unistd.h>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include "knobs.h"
#include "npusim.h"

namespace {

std::string report_path() {
    std::string path = npusim_knob_text(Knob::REPORT);
    const size_t at = path.find("%p");
    return at == std::string::npos ? path : path.replace(at, 2, std::to_string(getpid()));
}

void write_report() {
    std::map<std::string, uint64_t> calls;
    for_each_call([](void* all, const char* name,
                     uint64_t count) { (*static_cast<std::map<std::string, uint64_t>*>(all))[name] = count; },
                  &calls);
    const std::string path = report_path(), partial = path + ".partial";
    FILE* const file = fopen(partial.c_str(), "w");
    if (file == nullptr) return;
    fprintf(file, "{\"pid\": %d, \"live_bytes\": {", static_cast<int>(getpid()));
    const int64_t devices = npusim_knob(Knob::DEVICES);
    for (int device = 0; device < devices; ++device)
        fprintf(file, "\"%d\": %llu, ", device,
                static_cast<unsigned long long>(npusim_live_bytes(device, static_cast<int>(getpid()))));
    fprintf(file, "\"host\": %llu}, \"registered_bytes\": %llu, \"calls\": {",
            static_cast<unsigned long long>(npusim_live_bytes(NPUSIM_HOST, static_cast<int>(getpid()))),
            static_cast<unsigned long long>(npusim_registered_bytes()));
    const char* comma = "";
    for (const auto& [name, count] : calls) {
        fprintf(file, "%s\"%s\": %llu", comma, name.c_str(), static_cast<unsigned long long>(count));
        comma = ", ";
    }
    fprintf(file, "}}\n");
    if (fclose(file) == 0) rename(partial.c_str(), path.c_str());
}

}  // namespace

void report_at_exit() {
    if (*npusim_knob_text(Knob::REPORT) != 0) atexit(write_report);
}
