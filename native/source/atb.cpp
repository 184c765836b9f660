// Source: the Ascend Transformer Boost library (ATB), as operators and kernels of framework 1.
//
// Its functions are C++ ones, hooked by their mangled names, and it is shipped in two builds that differ in the layout
// of std::string, which shows in those names. What is hooked:
//   * atb::Runner::Execute(RunnerVariantPack&): one operator. OP_START, an ACCESS for each tensor, the call, OP_END.
//   * atb::StoreUtil::SaveLaunchParam(stream, LaunchParam, directory): ATB calls it before and after a kernel, to write
//     the kernel's tensors to files, if its Probe says so. KERNEL_START and KERNEL_END.
//   * atb::Probe::*, which decide that. ATB leaves them to tools to replace, and its own say no. Ours say yes while
//     kernels are wanted, and then the files are not written; see is_forced().
//   * atb::Runner::IsSaveTensor: the same decision for whole operators, kept at what it would have been.
//
// Nothing of ATB's is read before it is known to be laid out as we think: every symbol of one build must be there, and
// the first tensors seen must look like tensors (atb_layout.h). Otherwise the source is off, says so once, and every
// call goes straight on. A call may throw: then its OP_END is missing. (A cleanup, in C with
// -fexceptions, aborts the program when libgcc is linked statically, as here: the exception was thrown by the unwinder
// of libgcc_s.so.1, which every program would then have to load with us.)
#include "source/atb_layout.h"

#include <cstdio>
#include <cstring>
#include <initializer_list>

#include "hook/devices.h"
#include "hook/guard.h"
#include "hook/patch.h"
#include "hook/recorder.h"
#include "hook/selection.h"
#include "source/block_memory.h"
#include "source/watched_blocks.h"
#include "stack/code_objects.h"

namespace memscope {
namespace {

using namespace atb;

constexpr u32 kAtb = 1;                        // EventRecord::aux of operators and kernels
constexpr u32 kUnknownAccess = 0, kWrite = 2;  // of accesses
constexpr u32 kMostText = 254;                 // bytes of a name and of an attribute, as upstream cuts them
constexpr u32 kMostPaths = 20'000;             // see Paths

// Both builds have these, under the same names ...
std::atomic<void*> g_execute, g_save_after, g_save_before, g_in_range, g_save_desc, g_save_tensor, g_in_tensors,
    g_out_tensors, g_get_device;
// ... and these under a name each.
struct Build {
    std::atomic<void*> operation_name, directory, destroy_string, save_launch, need_save;
};
Build g_builds[2];  // by StringAbi

// --- whether and how --------------------------------------------------------------------------------------------

enum class Verdict : u32 { OFF, OLD, CXX11 };
std::atomic<Verdict> g_verdict{Verdict::OFF};
std::atomic<u64> g_judged{0};  // the library that the verdict is about; see verdict()
std::atomic<bool> g_pack_is_known{false};
std::atomic<u64> g_launch_stride{0};  // bytes of a tensor of LaunchParam; 0: none seen yet

void switch_off(const char* why) noexcept {
    g_verdict.store(Verdict::OFF, std::memory_order_release);
    report_blind("atb", why);
}

bool is_complete(const Build& build) noexcept {
    const std::atomic<void*>* const needed[] = {
        &g_execute,       &g_save_after,         &g_save_before,
        &g_in_range,      &g_save_desc,          &g_save_tensor,
        &g_in_tensors,    &g_out_tensors,        &build.operation_name,
        &build.directory, &build.destroy_string, &build.save_launch,
        &build.need_save,
    };
    for (const std::atomic<void*>* symbol : needed)
        if (symbol->load(std::memory_order_acquire) == nullptr) return false;
    return true;
}

bool lie_in_one_object(const void* one, const void* other) noexcept {
    CodeObject first, second;
    return code_object_at(reinterpret_cast<u64>(one), first) == Sight::KNOWN &&
           code_object_at(reinterpret_cast<u64>(other), second) == Sight::KNOWN && first.begin == second.begin;
}

void judge(u64 library) noexcept {
    const bool old = is_complete(g_builds[0]), cxx11 = is_complete(g_builds[1]);
    g_pack_is_known.store(false, std::memory_order_relaxed);
    g_launch_stride.store(0, std::memory_order_relaxed);
    if (!old && !cxx11) {
        switch_off("a symbol of its library is missing: its operators and kernels are not recorded");
    } else {
        // With both builds loaded, the one whose Execute we call on to.
        const bool takes_old =
            old && (!cxx11 || lie_in_one_object(g_execute.load(), g_builds[0].operation_name.load()));
        g_verdict.store(takes_old ? Verdict::OLD : Verdict::CXX11, std::memory_order_release);
    }
    g_judged.store(library, std::memory_order_release);
}

Verdict verdict() noexcept {
    u64 library = 1;  // known by where its symbols lie: one unloaded and another loaded are two
    for (const std::atomic<void*>* symbol : {&g_execute, &g_builds[0].operation_name, &g_builds[1].operation_name})
        library = combine64(library, reinterpret_cast<u64>(symbol->load(std::memory_order_acquire)));
    library = nonzero(library);
    if (__builtin_expect(g_judged.load(std::memory_order_acquire) != library, 0)) judge(library);
    return g_verdict.load(std::memory_order_acquire);
}

StringAbi abi_of(Verdict what) noexcept { return what == Verdict::OLD ? StringAbi::OLD : StringAbi::CXX11; }

bool is_known(const VariantPack* pack) noexcept {
    if (g_pack_is_known.load(std::memory_order_acquire)) return true;
    const Likeness likeness = looks_like_variant_pack(pack);
    if (likeness == Likeness::NO)
        switch_off("its tensors have another layout: its operators and kernels are not recorded");
    if (likeness == Likeness::YES) g_pack_is_known.store(true, std::memory_order_release);
    return likeness == Likeness::YES;
}

// --- texts ------------------------------------------------------------------------------------------------------

// A text that is cut at kMostText bytes.
class Line {
public:
    void add(const char* text, u64 bytes) noexcept {
        if (bytes > kMostText - length_) bytes = kMostText - length_;
        memcpy(text_ + length_, text, bytes);
        length_ += static_cast<u32>(bytes);
    }
    void add(const char* text) noexcept { add(text, strlen(text)); }
    template <typename Value>
    void print(const char* format, Value value) noexcept {
        char piece[32];
        const int bytes = snprintf(piece, sizeof piece, format, value);
        if (bytes > 0) add(piece, static_cast<u64>(bytes));
    }
    const char* text() const noexcept { return text_; }
    u32 length() const noexcept { return length_; }
    u64 intern() const noexcept { return intern_text(text_, length_); }

private:
    char text_[kMostText];
    u32 length_ = 0;
};

// ATB's paths count executions, so a long run makes ever new ones, which would fill the table of all strings. A filter
// counts them (a few too little), and at kMostPaths they end.
struct Paths {
    std::atomic<u64> seen[1 << 13];
    std::atomic<u32> count;

    u64 intern(const Line& line) noexcept {
        const u64 hash = text_id(line.text(), line.length());
        const u64 bit = u64{1} << (hash & 63);
        std::atomic<u64>& word = seen[(hash >> 6) % (sizeof seen / sizeof seen[0])];
        if ((word.load(std::memory_order_relaxed) & bit) == 0) {
            if (count.load(std::memory_order_relaxed) >= kMostPaths) {
                report_lost("atb", "paths: there are too many different ones, later ones are left out");
                return 0;
            }
            if ((word.fetch_or(bit, std::memory_order_relaxed) & bit) == 0)
                count.fetch_add(1, std::memory_order_relaxed);
        }
        return line.intern();
    }
};
Paths g_paths;

// A std::string that ATB returns by value. Not trivial to destroy, which is what makes a caller pass the place for it,
// as for the real one. Destroyed by the destructor of its own build, from whichever library has it in this process.
template <StringAbi abi>
struct Returned {
    alignas(8) char place[abi == StringAbi::OLD ? 8 : 32];

    ~Returned() { original_of<void (*)(void*)>(g_builds[static_cast<u32>(abi)].destroy_string)(place); }
};

template <StringAbi abi>
void add_returned(Line& line, const std::atomic<void*>& getter, const void* runner) noexcept {
    const Returned<abi> string = original_of<Returned<abi> (*)(const void*)>(getter)(runner);
    Text text;
    if (read_string(abi, string.place, text)) line.add(text.start, text.length);
}

void add_returned(Line& line, StringAbi abi, std::atomic<void*> Build::* getter, const void* runner) noexcept {
    const std::atomic<void*>& found = g_builds[static_cast<u32>(abi)].*getter;
    if (abi == StringAbi::OLD) add_returned<StringAbi::OLD>(line, found, runner);
    if (abi == StringAbi::CXX11) add_returned<StringAbi::CXX11>(line, found, runner);
}

// --- events -----------------------------------------------------------------------------------------------------

i16 current_device() noexcept {
    i32 device = kNoDevice;
    const auto get = original_of<int (*)(i32*)>(g_get_device);
    return get != nullptr && get(&device) == 0 ? physical_device(static_cast<i16>(device)) : kNoDevice;
}

// What runs: an operator or a kernel. Its name and attribute are strings of the ring.
struct Running {
    i16 device;
    u64 name;
    u64 attr;
    bool is_kernel;
    bool has_started;  // its OP_START was written
    u32 times;         // of watched_blocks.h; 0: nothing is looked at beside it
    Line path;

    Event event(Kind kind) const noexcept {
        Event event(kind);
        event.record.device_type = static_cast<u8>(DeviceType::NPU);
        event.record.device = device;
        event.record.name = name;
        return event;
    }
    void emit_boundary(Kind kind) const noexcept {
        Event boundary = event(kind);
        boundary.record.attr = attr;
        boundary.record.aux = kAtb;
        emit(boundary);
    }
};

// The latest stream that this thread gave a kernel of ATB's. An operator does not say its own before it runs; without
// one the whole device is waited for.
__thread void* t_stream = nullptr;
__thread u32 t_kernel_times = 0;

// Watched blocks beside an operator or a kernel go by its path, as with upstream.
Looked looked_of(const Running& running) noexcept {
    Looked looked = {running.is_kernel ? WatchBeside::ATB_KERNEL : WatchBeside::ATB,
                     0,
                     DeviceType::NPU,
                     running.device,
                     0,
                     0,
                     running.path.text(),
                     running.path.length(),
                     running.times};
    looked.name = g_paths.intern(running.path);
    if (looked.name == 0) looked.name = running.name;
    return looked;
}

void look_before_atb(const Running& running) noexcept {
    const Looked looked = looked_of(running);
    if (looks_at_device(looked)) settle_npu(t_stream);
    look_before(looked);
}

template <typename Output_>
void look_after_atb(const Running& running, const Output_& outputs_of) noexcept {
    const Looked looked = looked_of(running);
    Output outputs[32];
    const u32 count = is_watch_start(looked.text, looked.bytes) ? outputs_of(outputs, 32) : 0;
    if (count != 0 || looks_at_device(looked)) settle_npu(t_stream);
    look_after(looked, outputs, count);
}

// The two vocabularies of the same values.
struct Words {
    const char *dtype, *no_dtype, *format;
};
constexpr Words kAclWords = {"ACL_", "ACL_DT_UNDEFINED", "ACL_FORMAT_"};
constexpr Words kMkiWords = {"TENSOR_DTYPE_", "TENSOR_DTYPE_UNDEFINED", "TENSOR_FORMAT_"};

struct Touched {
    i32 dtype, format;
    const i64* dims;
    u64 dim_count;
    u64 ptr;
    u64 bytes;
};

void emit_access(const Running& running, const Touched& tensor, const Words& words, u32 how) noexcept {
    if (tensor.ptr == 0) return;  // no device memory: a block at 0 would be nobody's
    Line line;
    line.add("dtype:");
    const char* dtype = dtype_word(tensor.dtype);
    line.add(dtype != nullptr ? words.dtype : words.no_dtype);
    if (dtype != nullptr) line.add(dtype);
    line.add(",format:");
    line.add(words.format);
    const char* format = format_word(tensor.format);
    line.add(format != nullptr ? format : "UNDEFINED");
    const u32 without_shape = line.length();
    line.add(",shape:[");
    for (u64 i = 0; i < tensor.dim_count && i < kMostDims; ++i)
        line.print("%lld,", static_cast<long long>(tensor.dims[i]));
    line.add("]");
    Event event = running.event(Kind::ACCESS);
    event.record.ptr = tensor.ptr;
    event.record.size = static_cast<i64>(tensor.bytes);
    event.record.aux = how;
    event.record.attr = intern_free_text("atb", line.text(), line.length());
    if (event.record.attr == 0) event.record.attr = intern_text(line.text(), without_shape);
    emit(event);
}

Output output_of(const Running& running, u64 ptr, u64 bytes) noexcept {
    return {DeviceType::NPU, running.device, ptr, ptr, static_cast<i64>(bytes)};
}

void emit_accesses(const Running& running, const SVector<Tensor>& tensors, u32 how) noexcept {
    if (!tensors.is_plausible()) return;
    for (u64 i = 0; i < tensors.size; ++i) {
        const Tensor& tensor = tensors.items()[i];
        emit_access(running,
                    {tensor.dtype, tensor.format, tensor.dims, tensor.dim_count, tensor.device_data, tensor.bytes},
                    kAclWords, how);
    }
}

void emit_accesses(const Running& running, const LaunchTensors& tensors, u32 how) noexcept {
    const u64 count = tensors.count() <= LaunchTensors::kMost ? tensors.count() : 0;
    for (u64 i = 0; i < count; ++i)
        emit_access(running,
                    {tensors.dtype(i), tensors.format(i), tensors.dims(i), tensors.dim_count(i), tensors.data(i),
                     tensors.bytes(i)},
                    kMkiWords, how);
}

// --- operators --------------------------------------------------------------------------------------------------

bool is_any_wanted() noexcept {
    return is_wanted(Sort::OPERATORS) || is_wanted(Sort::KERNELS) || is_wanted(Sort::ACCESSES) || has_watches();
}

// False: this operator leaves no records.
bool begin_operator(const void* runner, const VariantPack* pack, Running& running) noexcept {
    const Guard guard;
    const Verdict what = guard ? verdict() : Verdict::OFF;
    if (what == Verdict::OFF || !is_known(pack)) return false;
    const bool has_looks = has_watches();
    if (!is_wanted(Sort::OPERATORS) && !is_wanted(Sort::ACCESSES) && !has_looks) return false;
    running.device = current_device();
    if (!is_selected(DeviceType::NPU, running.device) || !ensure_ring()) return false;
    Line name, attr;
    add_returned(name, abi_of(what), &Build::operation_name, runner);
    running.name = name.intern();
    if (has_looks || is_wanted(Sort::OPERATORS)) add_returned(running.path, abi_of(what), &Build::directory, runner);
    if (is_wanted(Sort::OPERATORS)) {
        attr.add("path:");
        attr.add(running.path.text(), running.path.length());
        attr.print(",workspace_ptr:%p", reinterpret_cast<const void*>(pack->workspace));
        attr.print(",workspace_size:%llu",
                   static_cast<unsigned long long>(pack->workspace_bytes + pack->intermediate_bytes));
        running.attr = g_paths.intern(attr);
        running.emit_boundary(Kind::OP_START);
        running.has_started = true;
    }
    if (is_wanted(Sort::ACCESSES) || has_looks) {
        emit_accesses(running, pack->in, kUnknownAccess);
        emit_accesses(running, pack->out, kWrite);
    }
    if (has_looks) {
        running.times = count_look(looked_of(running).name);
        look_before_atb(running);
    }
    return true;
}

void end_operator(const VariantPack* pack, const Running& running) noexcept {
    const Guard guard;
    if (!guard) return;
    if (running.times != 0 && has_watches())
        look_after_atb(running, [&](Output* outputs, u32 most) noexcept {
            u32 count = 0;
            for (u64 i = 0; pack->out.is_plausible() && i < pack->out.size && count < most; ++i)
                outputs[count++] = output_of(running, pack->out.items()[i].device_data, pack->out.items()[i].bytes);
            return count;
        });
    if (running.has_started) running.emit_boundary(Kind::OP_END);
}

i32 execute(void* runner, VariantPack* pack) {
    const auto real = original_of<i32 (*)(void*, VariantPack*)>(g_execute);
    Running running = {};
    const bool is_seen = is_recording() && is_any_wanted() && begin_operator(runner, pack, running);
    const i32 status = real(runner, pack);
    if (is_seen && is_recording()) end_operator(pack, running);
    return status;
}

// --- the decision to save ---------------------------------------------------------------------------------------

// Whether the program has a Probe of its own that saves tensors. From then on everything is as it says, and kernels are
// shown only where it saves them. An operator that was set up before, under our yes, is then saved too.
std::atomic<bool> g_program_saves{false};
std::atomic<bool> g_forced{false};  // whether ATB may have kept a yes of ours

bool is_forced() noexcept { return !g_program_saves.load(std::memory_order_relaxed) && verdict() != Verdict::OFF; }

// The answer to a question of which the program's own is `own`.
bool answer(bool own, bool is_ours) noexcept {
    if (!own) return is_ours && is_forced();
    if (!g_program_saves.exchange(true, std::memory_order_relaxed) && is_wanted(Sort::KERNELS) && is_watching())
        report_blind("atb", "the program saves tensors itself: kernels are recorded only where it does");
    return true;
}

// Kept by ATB from when an operator is set up, so it must be said before recording begins; it has no effect of its own.
bool is_needed(StringAbi abi, const void* ids, const void* name) {
    const auto own = original_of<bool (*)(const void*, const void*)>(g_builds[static_cast<u32>(abi)].need_save);
    const bool yes = answer(own(ids, name), is_watching() && (is_wanted(Sort::KERNELS) || has_watches()));
    if (yes && !g_program_saves.load(std::memory_order_relaxed)) g_forced.store(true, std::memory_order_relaxed);
    return yes;
}
bool is_needed_old(const void* ids, const void* name) { return is_needed(StringAbi::OLD, ids, name); }
bool is_needed_cxx11(const void* ids, const void* name) { return is_needed(StringAbi::CXX11, ids, name); }

// Likewise: makes ATB write down its paths while it sets an operator up.
bool is_saving_desc() {
    const bool own = original_of<bool (*)()>(g_save_desc)();
    return own || (is_watching() && is_any_wanted() && is_forced());
}

bool wants_kernels_now() noexcept { return is_recording() && (is_wanted(Sort::KERNELS) || has_watches()); }
bool is_saving_after() { return answer(original_of<bool (*)()>(g_save_after)(), wants_kernels_now()); }
bool is_saving_before() { return answer(original_of<bool (*)()>(g_save_before)(), wants_kernels_now()); }
bool is_in_range(u64 count) { return answer(original_of<bool (*)(u64)>(g_in_range)(count), wants_kernels_now()); }

bool is_ours_alone() noexcept {
    return g_forced.load(std::memory_order_relaxed) && !g_program_saves.load(std::memory_order_relaxed);
}

bool is_saving_operator(const void* runner) {
    return !is_ours_alone() && original_of<bool (*)(const void*)>(g_save_tensor)(runner);
}

// --- kernels ----------------------------------------------------------------------------------------------------

// "DIRECTORY/0_AddI32Kernel/before" is the start of kernel 0_AddI32Kernel at path DIRECTORY/0_AddI32Kernel.
bool parse_directory(Text& path, Text& name, Kind& kind) noexcept {
    const auto ends_with = [&](const char* end) {
        const u64 bytes = strlen(end);
        if (path.length < bytes || memcmp(path.start + path.length - bytes, end, bytes) != 0) return false;
        path.length -= bytes;
        return true;
    };
    if (ends_with("/before")) {
        kind = Kind::KERNEL_START;
    } else if (ends_with("/after")) {
        kind = Kind::KERNEL_END;
    } else {
        return false;
    }
    name = path;
    for (u64 i = path.length; i > 0 && name.start == path.start; --i)
        if (path.start[i - 1] == '/') name = {path.start + i, path.length - i};
    return true;
}

void emit_kernel(StringAbi abi, void* launch, const void* directory) noexcept {
    const Guard guard;
    const Verdict what = guard ? verdict() : Verdict::OFF;
    if (what == Verdict::OFF || abi_of(what) != abi || !g_pack_is_known.load(std::memory_order_acquire)) return;
    Text path, kernel;
    Kind kind;
    if (!read_string(abi, directory, path) || !parse_directory(path, kernel, kind)) return;
    Running running = {};
    running.device = current_device();
    running.is_kernel = true;
    if (!is_selected(DeviceType::NPU, running.device)) return;
    const void* const in = original_of<const void* (*)(void*)>(g_in_tensors)(launch);
    const void* const out = original_of<const void* (*)(void*)>(g_out_tensors)(launch);
    if (g_launch_stride.load(std::memory_order_acquire) == 0) {
        const u64 stride = measure_launch_tensors(in, out);
        if (stride == 0)
            return switch_off("tensors of its kernels have another layout: its operators and kernels are not recorded");
        g_launch_stride.store(stride, std::memory_order_release);
    }
    if (!ensure_ring()) return;
    Line name, attr;
    name.add(kernel.start, kernel.length);
    running.name = name.intern();
    attr.add("path:");
    attr.add(path.start, path.length);
    running.path.add(path.start, path.length);
    const LaunchTensors written = {static_cast<const char*>(out), g_launch_stride.load(std::memory_order_acquire)};
    if (kind == Kind::KERNEL_END && t_kernel_times != 0 && has_watches()) {
        running.times = t_kernel_times;
        look_after_atb(running, [&](Output* outputs, u32 most) noexcept {
            u32 count = 0;
            for (u64 i = 0; written.count() <= LaunchTensors::kMost && i < written.count() && count < most; ++i)
                outputs[count++] = output_of(running, written.data(i), written.bytes(i));
            return count;
        });
    }
    if (is_wanted(Sort::KERNELS)) {
        running.attr = g_paths.intern(attr);
        running.emit_boundary(kind);
    }
    if (kind != Kind::KERNEL_START) return;
    if ((is_wanted(Sort::KERNELS) && is_wanted(Sort::ACCESSES)) || has_watches()) {
        emit_accesses(running, {static_cast<const char*>(in), written.stride}, kUnknownAccess);
        emit_accesses(running, written, kWrite);
    }
    t_kernel_times = 0;
    if (has_watches()) {
        running.times = t_kernel_times = count_look(looked_of(running).name);
        look_before_atb(running);
    }
}

// Called because of our yes, it must not write; called because of the program's, it must.
void save_launch(StringAbi abi, void* stream, void* launch, const void* directory) {
    if (wants_kernels_now()) {
        t_stream = stream;
        emit_kernel(abi, launch, directory);
    }
    const auto real = original_of<void (*)(void*, void*, const void*)>(g_builds[static_cast<u32>(abi)].save_launch);
    if (!is_ours_alone()) real(stream, launch, directory);
}
void save_launch_old(void* stream, void* launch, const void* directory) {
    save_launch(StringAbi::OLD, stream, launch, directory);
}
void save_launch_cxx11(void* stream, void* launch, const void* directory) {
    save_launch(StringAbi::CXX11, stream, launch, directory);
}

// --- the table --------------------------------------------------------------------------------------------------

#define CXX11_STRING "NSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEE"

const Hook kHooks[] = {
    {"_ZN3atb6Runner7ExecuteERNS_17RunnerVariantPackE", reinterpret_cast<void*>(execute), &g_execute},
    {"_ZN3atb9StoreUtil15SaveLaunchParamEPvRKN3Mki11LaunchParamERKSs", reinterpret_cast<void*>(save_launch_old),
     &g_builds[0].save_launch},
    {"_ZN3atb9StoreUtil15SaveLaunchParamEPvRKN3Mki11LaunchParamERK" CXX11_STRING "E",
     reinterpret_cast<void*>(save_launch_cxx11), &g_builds[1].save_launch},
    {"_ZN3atb5Probe16IsTensorNeedSaveERKSt6vectorIlSaIlEERKSs", reinterpret_cast<void*>(is_needed_old),
     &g_builds[0].need_save},
    {"_ZN3atb5Probe16IsTensorNeedSaveERKSt6vectorIlSaIlEERK" CXX11_STRING "E", reinterpret_cast<void*>(is_needed_cxx11),
     &g_builds[1].need_save},
    {"_ZN3atb5Probe17IsSaveTensorAfterEv", reinterpret_cast<void*>(is_saving_after), &g_save_after},
    {"_ZN3atb5Probe18IsSaveTensorBeforeEv", reinterpret_cast<void*>(is_saving_before), &g_save_before},
    {"_ZN3atb5Probe21IsExecuteCountInRangeEm", reinterpret_cast<void*>(is_in_range), &g_in_range},
    {"_ZN3atb5Probe16IsSaveTensorDescEv", reinterpret_cast<void*>(is_saving_desc), &g_save_desc},
    {"_ZNK3atb6Runner12IsSaveTensorEv", reinterpret_cast<void*>(is_saving_operator), &g_save_tensor},
    // Called, not replaced.
    {"_ZNK3atb6Runner16GetOperationNameEv", nullptr, &g_builds[0].operation_name},
    {"_ZNK3atb6Runner16GetOperationNameB5cxx11Ev", nullptr, &g_builds[1].operation_name},
    {"_ZNK3atb6Runner16GetSaveTensorDirEv", nullptr, &g_builds[0].directory},
    {"_ZNK3atb6Runner16GetSaveTensorDirB5cxx11Ev", nullptr, &g_builds[1].directory},
    {"_ZNSsD1Ev", nullptr, &g_builds[0].destroy_string},
    {"_Z" CXX11_STRING "D1Ev", nullptr, &g_builds[1].destroy_string},
    {"_ZN3Mki11LaunchParam12GetInTensorsEv", nullptr, &g_in_tensors},
    {"_ZN3Mki11LaunchParam13GetOutTensorsEv", nullptr, &g_out_tensors},
    {"aclrtGetDevice", nullptr, &g_get_device},
};

}  // namespace

MEMSCOPE_SOURCE("atb", "CANN", "operators and tensors of ATB", kHooks);

}  // namespace memscope
