#include "hook/identity.h"

#include <fcntl.h>
#include <unistd.h>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace memscope {

namespace {

struct Launcher {
    const char* rank;
    const char* local_rank;
    const char* size;
    const char* other_size;
    const char* node;
    const char* restarts;
    i32 fewest;
    const char* but;
};

constexpr Launcher kLaunchers[] = {
#define LAUNCHER(...) {__VA_ARGS__},
#include "launchers/identity.inc"
#undef LAUNCHER
};

// What is wrong, one remark after another.
class Complaint {
public:
    explicit Complaint(char (&text)[sizeof Identity::complaint]) noexcept : text_(text) {}

    void add(const char* variable, const char* value, const char* fault) noexcept {
        constexpr std::size_t kShown = 24;
        char shown[kShown + 1];
        std::size_t bytes = 0;
        for (; value[bytes] != 0 && bytes < kShown; ++bytes)
            shown[bytes] = value[bytes] > ' ' && value[bytes] < 0x7f ? value[bytes] : '?';
        shown[bytes] = 0;
        const int written = snprintf(text_ + used_, sizeof Identity::complaint - used_, "%s%s=%s %s",
                                     used_ == 0 ? "" : ", ", variable, shown, fault);
        if (written > 0) used_ += static_cast<std::size_t>(written);
        if (used_ >= sizeof Identity::complaint) used_ = sizeof Identity::complaint - 1;
    }

private:
    char* text_;
    std::size_t used_ = 0;
};

const char* text_of(const char* variable) noexcept {
    const char* text = variable == nullptr ? nullptr : getenv(variable);
    return text == nullptr || *text == 0 ? nullptr : text;
}

// A decimal number below `limit` and nothing else; -1 when the variable is not there, or is no such number.
i32 number_of(const char* variable, i32 limit, Complaint& complaint) noexcept {
    const char* text = text_of(variable);
    if (text == nullptr) return -1;
    i32 value = 0;
    for (const char* digit = text; *digit != 0; ++digit) {
        if (*digit < '0' || *digit > '9' || digit - text >= 9) value = limit;
        if (value >= limit) break;
        value = value * 10 + (*digit - '0');
    }
    if (value < limit) return value;
    complaint.add(variable, text, "is no number from 0 on");
    return -1;
}

// Does the environment hold exactly this NAME=VALUE?
bool is_set_so(const char* assignment) noexcept {
    if (assignment == nullptr) return false;
    char** found = environ;
    while (found != nullptr && *found != nullptr && strcmp(*found, assignment) != 0) ++found;
    return found != nullptr && *found != nullptr;
}

}  // namespace

Identity identity_of_environment() noexcept {
    Identity found;
    Complaint complaint(found.complaint);
    const char* lonely = nullptr;  // a rank without a size, which another launcher's line may make up for
    for (const Launcher& launcher : kLaunchers) {
        if (is_set_so(launcher.but)) continue;
        const i32 rank = number_of(launcher.rank, kMostRanks, complaint);
        if (rank < 0) continue;
        i32 size = number_of(launcher.size, kMostRanks + 1, complaint);
        if (size < 0) size = number_of(launcher.other_size, kMostRanks + 1, complaint);
        if (size < launcher.fewest) {
            if (launcher.fewest == 1 && size < 0 && lonely == nullptr) lonely = launcher.rank;
            if (launcher.fewest == 1 && size == 0) complaint.add(launcher.size, "0", "is no number of ranks");
            continue;
        }
        if (rank >= size) {
            complaint.add(launcher.rank, text_of(launcher.rank), "is not below the number of ranks");
            continue;
        }
        found.rank = rank;
        found.world_size = size;
        found.local_rank = number_of(launcher.local_rank, kMostRanks, complaint);
        found.group_rank = number_of(launcher.node, kMostRanks, complaint);
        const i32 restarts = number_of(launcher.restarts, kMostRanks, complaint);
        found.attempt = restarts < 0 ? 0 : static_cast<u32>(restarts);
        return found;
    }
    if (lonely != nullptr) complaint.add(lonely, text_of(lonely), "comes without the number of ranks");
    return found;
}

void read_command(char* to, std::size_t size) noexcept {
    constexpr char kSeparator = 0x1f;
    std::size_t bytes = 0;
    const int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    while (fd >= 0 && bytes < size - 1) {
        const ssize_t got = read(fd, to + bytes, size - 1 - bytes);
        if (got <= 0) break;
        bytes += static_cast<std::size_t>(got);
    }
    if (fd >= 0) close(fd);
    while (bytes > 0 && to[bytes - 1] == 0) --bytes;
    for (std::size_t at = 0; at < bytes; ++at)
        if (to[at] == 0) to[at] = kSeparator;
    to[bytes] = 0;
}

}  // namespace memscope
