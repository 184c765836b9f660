// The recorder: the one writer's side of a process. Sources call emit(); everything behind it (the ring and
// when it is made, identity, interning, the current step, what a fork does) is here.
//
// A process that has a session but never emits anything creates no file. The ring is made by the first event.
// A fault (no space, no directory) disables recording for the process and leaves the reason in stats().
#pragma once

#include <atomic>

#include "record/intern.h"
#include "record/ring.h"

namespace memscope {

// What hooks do. The only thing that a hook reads when it is OFF.
enum class Watch : u32 {
    OFF,          // nothing: a hook goes straight on to the original
    REMEMBERING,  // blocks are remembered (blocks.h), nothing is written
    RECORDING,
};
extern std::atomic<Watch> g_watch;

inline bool is_watching() noexcept {
    return __builtin_expect(g_watch.load(std::memory_order_relaxed) != Watch::OFF, 0);
}
inline bool is_recording() noexcept {
    return __builtin_expect(g_watch.load(std::memory_order_relaxed) == Watch::RECORDING, 0);
}

// What the card of the calling thread holds. Set by the source whose runtime can be asked; called by start() alone, on
// the program's own thread and outside of all hooks, so that it may call the runtime. False: it has none.
struct CardUse {
    i16 device;
    i64 used, total;
};
extern std::atomic<bool (*)(CardUse&)> g_ask_card;

// Recording began or ended, or what is wanted of operators changed: whoever sees them is told, so that torch calls
// nothing of ours meanwhile. On the program's own thread and outside of all hooks. source/aten.cpp.
void operators_switched() noexcept;

struct Event {
    Kind kind;
    u8 flags = 0;
    EventRecord record = {};

    explicit Event(Kind what) noexcept : kind(what) {
        record.used = record.total = kUnknown;
        record.device = kNoDevice;
    }
};

// Fills ts, tid and step unless they are set, and writes the event to the ring. Call inside a Guard.
void emit(Event& event) noexcept;
u32 current_tid() noexcept;

// Defines the string once per ring and returns its id; 0 when it could not be defined.
u64 intern_text(const char* text, std::size_t bytes) noexcept;
// The same under a key of the caller's, by which the id is found again without making the text; 0: not there yet.
u64 intern_text_as(u64 key, const char* text, std::size_t bytes) noexcept;
u64 find_text(u64 key) noexcept;
// False: this process has had so many different ones that texts of which a program may have any number are to be left
// out, which is told for the source (a literal). The rest of the table is for names, files and functions.
bool has_room_for_texts(const char* source) noexcept;
// The string of such a text: of a mark, a label, a path. 0 also where there is no room and it is not known yet.
u64 intern_free_text(const char* source, const char* text, std::size_t bytes) noexcept;
// variant: tells frames apart whose texts agree, such as those of two builds of one object.
u64 intern_frame(u64 key, FrameKind kind, const char* file, std::size_t file_bytes, const char* function,
                 std::size_t function_bytes, u32 line, u64 variant = 0) noexcept;
u64 intern_stack(u64 key, FrameKind kind, const u64* frame_ids, u32 count) noexcept;
u64 find_frame(u64 key) noexcept;
u64 find_stack(u64 key) noexcept;
// False: this process has had so many different ones that new ones are to be shortened.
bool has_room_for_whole_stacks() noexcept;

// Makes sure that there is a ring, so that the intern tables may be used. False: this process records nothing.
bool ensure_ring() noexcept;
bool has_ring() noexcept;
// For settings.cpp: how long it waits for room is another time from now on.
void use_ring_wait() noexcept;
// For fork.cpp: this process was forked in the middle of a hook.
void record_nothing_in_child() noexcept;

// A META event. Call inside a Guard, with a ring.
void emit_meta(const char* key, const char* value) noexcept;

// A source says, once for each text, that it cannot see something: a symbol that is missing, a structure of another
// size. Goes to the run's tables as META "lost.<source>" and to memscope_visit_lost, and never to the program's
// output. Users read both texts, which are literals: `source` is what they know it by. Call from anywhere, also before
// there is a ring. It is said of this process alone: a child that it forks may have room where this one had none, and
// says itself what it meets.
void report_lost(const char* source, const char* what) noexcept;
// The same of what is found out once, and stays so in every child that is forked: each says it, too.
void report_blind(const char* source, const char* what) noexcept;

}  // namespace memscope

// The C interface of the library, used by the Python module and by programs that link it.
extern "C" {

// Where rings go: the session directory. Copied. Returns 0, or ENAMETOOLONG.
int memscope_set_session(const char* directory);
// This process will record nothing into the session, for the reason `error`: counted in the run, see unwatched.h.
void memscope_note_unwatched(int error);

// Recording on or off; a SYSTEM event marks either in the ring. Idempotent. After stop() blocks are remembered.
void memscope_start();
void memscope_stop();
// From OFF to REMEMBERING.
void memscope_remember();

// A boundary of steps, told by `source` (memscope::StepSource, in order of trust). stepper: which optimizer; 0 for the
// other sources. What counts and how it is numbered: steps.h. Nothing while not recording.
void memscope_boundary(unsigned source, unsigned long long stepper);
unsigned memscope_current_step();

// Amends the identity in the ring's header and as META events. A negative value leaves the field as it is.
void memscope_identify(int rank, int local_rank, int world_size, int group_rank, const char* role);

// The rank that a launcher gave this process in its environment, or -1: launchers/identity.inc.
int memscope_launched_rank();

// A META event of any key and value.
void memscope_meta(const char* key, const char* value);

// What report_lost was told in this process.
void memscope_visit_lost(void (*visit)(void* context, const char* source, const char* what), void* context);

struct memscope_stats {
    unsigned long long ring_id;  // 0: no ring yet
    unsigned long long head;     // bytes ever reserved in the ring
    unsigned long long lost;
    int error;  // errno that disabled recording, or 0
    int recording;
};
void memscope_get_stats(memscope_stats* out);
}
