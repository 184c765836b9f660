#include "ascend_hal/card_state.h"
#include <fcntl.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include "knobs.h"
#include "npusim.h"

namespace {

constexpr uint64_t kMagic = 0x3144524143505553ull;  // "SUPCARD1": a change of the layout changes it
constexpr int kArenas = NPUSIM_MOST_DEVICES + 1;
constexpr int kMostHolders = 512;

struct Holder {
    int32_t pid;  // 0: free
    uint64_t start;
    CardUse use[kArenas];
};
struct CardFile {
    uint64_t magic;
    pthread_mutex_t lock;
    int32_t used_holders;  // none is used at or behind this
    Holder holders[kMostHolders];
};

// Field 22 of /proc/<pid>/stat, in clock ticks since boot: together with the number it names a process. 0: it is gone
// or a zombie, which has given its memory back already.
uint64_t start_time(int pid) {
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return 0;
    const ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    if (length <= 0) return 0;
    text[length] = 0;
    const char* at = strrchr(text, ')');  // a program's name may hold anything
    if (at == nullptr || at[1] == 0 || at[2] == 'Z' || at[2] == 'X') return 0;
    for (int field = 2; field < 22 && at != nullptr; ++field) at = strchr(at + 1, ' ');
    return at == nullptr ? 0 : strtoull(at, nullptr, 10);
}

std::string state_directory() {
    const char* const chosen = npusim_knob_text(Knob::STATE);
    return *chosen != 0 ? chosen : "/dev/shm/npusim-" + std::to_string(geteuid());
}

void make_directories(const std::string& path) {
    for (size_t at = path.find('/', 1); at != std::string::npos; at = path.find('/', at + 1))
        mkdir(path.substr(0, at).c_str(), 0700);
    mkdir(path.c_str(), 0700);
}

void initialise(CardFile* file) {
    pthread_mutexattr_t kind;
    pthread_mutexattr_init(&kind);
    pthread_mutexattr_setpshared(&kind, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&file->lock, &kind);
    pthread_mutexattr_destroy(&kind);
    file->magic = kMagic;
}

// The file, mapped, initialised by the first who comes. It stays open: its shared lock tells whoever cleans up that the
// directory is in use.
CardFile* map_file(const std::string& path) {
    const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0) return nullptr;
    struct stat facts;
    void* place = MAP_FAILED;
    if (flock(file, LOCK_SH) == 0 && fstat(file, &facts) == 0 && facts.st_uid == geteuid() &&
        (facts.st_size >= static_cast<off_t>(sizeof(CardFile)) || ftruncate(file, sizeof(CardFile)) == 0))
        place = mmap(nullptr, sizeof(CardFile), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (place == MAP_FAILED) {
        close(file);
        return nullptr;
    }
    auto* const cards = static_cast<CardFile*>(place);
    if (cards->magic != kMagic) initialise(cards);
    return cards;
}

// One process at a time, by a lock of its own: the shared lock above is held for life.
CardFile* map_shared() {
    const std::string directory = state_directory();
    make_directories(directory);
    const int gate = open((directory + "/opening").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (gate < 0) return nullptr;
    CardFile* const cards = flock(gate, LOCK_EX) == 0 ? map_file(directory + "/cards") : nullptr;
    close(gate);
    return cards;
}

CardFile* open_cards() {
    CardFile* cards = map_shared();
    if (cards != nullptr) return cards;
    fprintf(stderr, "[npusim] %s cannot be used (%s): this process has the cards to itself\n",
            state_directory().c_str(), strerror(errno));
    void* const place = mmap(nullptr, sizeof(CardFile), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (place == MAP_FAILED) abort();
    initialise(static_cast<CardFile*>(place));
    return static_cast<CardFile*>(place);
}

CardFile& cards() {
    static CardFile* const one = open_cards();
    return *one;
}

class Lock {
public:
    Lock() {
        if (pthread_mutex_lock(&cards().lock) == EOWNERDEAD) pthread_mutex_consistent(&cards().lock);
    }
    ~Lock() { pthread_mutex_unlock(&cards().lock); }
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;
};

bool is_alive(const Holder& holder) { return holder.pid != 0 && start_time(holder.pid) == holder.start; }

std::atomic<int> g_holder{-1};

// This process's holder; under the lock. Null when there are too many processes.
Holder* own_holder() {
    CardFile& file = cards();
    int index = g_holder.load(std::memory_order_relaxed);
    if (index >= 0) return &file.holders[index];
    for (index = 0; index < file.used_holders && is_alive(file.holders[index]); ++index)
        if (file.holders[index].pid == getpid()) break;  // the library was unloaded and loaded again
    if (index == kMostHolders) {
        fprintf(stderr, "[npusim] more than %d processes use the simulated cards\n", kMostHolders);
        return nullptr;
    }
    Holder& holder = file.holders[index];
    if (!is_alive(holder)) {
        memset(&holder, 0, sizeof holder);
        holder.start = start_time(getpid());
        holder.pid = getpid();
        if (index >= file.used_holders) file.used_holders = index + 1;
    }
    g_holder.store(index, std::memory_order_relaxed);
    return &holder;
}

uint64_t occupied(int arena) {
    uint64_t sum = 0;
    for (int i = 0; i < cards().used_holders; ++i)
        if (cards().holders[i].pid != 0) sum += cards().holders[i].use[arena].occupied;
    return sum;
}

void drop_dead_holders() {
    for (int i = 0; i < cards().used_holders; ++i)
        if (!is_alive(cards().holders[i])) memset(&cards().holders[i], 0, sizeof(Holder));
}

uint64_t base_bytes() { return static_cast<uint64_t>(npusim_knob(Knob::HBM_BASE_MB)) << 20; }
uint64_t total_bytes() { return static_cast<uint64_t>(npusim_knob(Knob::HBM_MB)) << 20; }

}  // namespace

bool card_take(int arena, CardUse use) {
    static const uint64_t base = base_bytes(), total = total_bytes();
    const Lock lock;
    Holder* const holder = own_holder();
    if (holder == nullptr) return false;
    if (arena != kHostArena && base + occupied(arena) + use.occupied > total) {
        drop_dead_holders();  // looked for only here: a look at /proc per allocation would be slow
        if (base + occupied(arena) + use.occupied > total) return false;
    }
    holder->use[arena].live += use.live;
    holder->use[arena].occupied += use.occupied;
    return true;
}

void card_give(int arena, CardUse use) {
    const Lock lock;
    Holder* const holder = own_holder();
    if (holder == nullptr) return;
    holder->use[arena].live -= use.live;
    holder->use[arena].occupied -= use.occupied;
}

uint64_t card_own_occupied() {
    const Lock lock;
    const Holder* const holder = own_holder();
    uint64_t sum = 0;
    for (int arena = 0; holder != nullptr && arena < kHostArena; ++arena) sum += holder->use[arena].occupied;
    return sum;
}

void card_forget_holder() { g_holder.store(-1, std::memory_order_relaxed); }

uint64_t npusim_live_bytes(int device, int pid) {
    if (device < NPUSIM_HOST || device >= NPUSIM_MOST_DEVICES) return 0;
    const int arena = device == NPUSIM_HOST ? kHostArena : device;
    const Lock lock;
    uint64_t sum = 0;
    for (int i = 0; i < cards().used_holders; ++i) {
        const Holder& holder = cards().holders[i];
        if ((pid == 0 || holder.pid == pid) && is_alive(holder)) sum += holder.use[arena].live;
    }
    return sum;
}

void npusim_hbm_info(uint32_t device, uint64_t* used, uint64_t* total) {
    *total = total_bytes();
    *used = 0;
    if (device >= NPUSIM_MOST_DEVICES) return;
    const Lock lock;
    drop_dead_holders();
    *used = base_bytes() + occupied(static_cast<int>(device));
}

int npusim_device_processes(uint32_t device, int* pids, uint64_t* bytes, int most) {
    if (device >= NPUSIM_MOST_DEVICES) return 0;
    const Lock lock;
    int count = 0;
    for (int i = 0; i < cards().used_holders && count < most; ++i) {
        const Holder& holder = cards().holders[i];
        if (holder.use[device].occupied == 0 || !is_alive(holder)) continue;
        pids[count] = holder.pid;
        bytes[count++] = holder.use[device].occupied;
    }
    return count;
}
