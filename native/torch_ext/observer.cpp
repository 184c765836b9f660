// The observer of torch's operators, compiled against the user's torch (collect/torch_ext.py) and loaded by a rank.
//
// In: torch's record functions, on every thread and whatever the device, with the arguments and results of each call.
// Out: the operators that a user would name and what they touch, through the sink. Observed is the outermost call that
// a kernel serves: what only calls others (linear, matmul, a dispatch mode, autocast, a tensor subclass) is passed
// over, and its parts are observed instead, so that names and tensors are those that a TorchDispatchMode sees. Calls
// that a kernel makes itself are part of it, unless inner operators are wanted too. FakeTensors and meta tensors have
// no memory: nobody hears of them.
//
// Each call that makes a node of the autograd graph is told too, and for each call in the backward pass the node that
// it is for: by the number that torch gives nodes for that purpose.
//
// Calls no operator, holds no tensor, takes no lock; an exception of ours must not reach the program.
#include <ATen/Parallel.h>
#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/function.h>
#include <algorithm>
#include <array>
#include <cctype>
#include <mutex>

#include "collectives.h"
#include "operator_sink.h"
#include "plan.h"

namespace torch::autograd {
TORCH_API int get_current_graph_task_id();  // of graph_task.h, which includes all of autograd
}

namespace memscope::observer {
namespace {

// memscope::DeviceType of record.h.
enum : short { kNone = 0, kCpu = 1, kNpu = 2, kCuda = 3 };

constexpr std::size_t kMostTensors = 2048;  // of one call; foreach operators of large models have some hundreds
constexpr unsigned kMostOpen = 16;          // calls within each other
constexpr unsigned kManyInnerCalls = 5;     // of a kernel: to be told of more takes longer than to have torch leave it

const memscope_operator_sink* g_sink = nullptr;
Plans g_plans;

short device_type_of(c10::DeviceType type) {
    switch (type) {
        case c10::DeviceType::CPU:
            return kCpu;
        case c10::DeviceType::CUDA:
            return kCuda;
        case c10::DeviceType::PrivateUse1:
            return kNpu;
        default:
            return kNone;
    }
}

// "torch.float32" of a dtype whose C++ name is Float; the newer ones are called alike in both.
const char* dtype_name(c10::ScalarType type) {
    static constexpr std::array<const char*, 16> kNames = {
        "torch.uint8",   "torch.int8",    "torch.int16",     "torch.int32",     "torch.int64",      "torch.float16",
        "torch.float32", "torch.float64", "torch.complex32", "torch.complex64", "torch.complex128", "torch.bool",
        "torch.qint8",   "torch.quint8",  "torch.qint32",    "torch.bfloat16"};
    const auto number = static_cast<std::size_t>(type);
    if (number < kNames.size()) return kNames[number];
    static std::array<std::atomic<const char*>, 64> others;
    if (number >= others.size()) return "torch.dtype";
    const char* known = others[number].load(std::memory_order_acquire);
    if (known == nullptr) {
        auto* made = new std::string(std::string("torch.") + c10::toString(type));  // kept: a literal from now on
        std::transform(made->begin(), made->end(), made->begin(), [](unsigned char c) { return std::tolower(c); });
        others[number].store(known = made->c_str(), std::memory_order_release);
    }
    return known;
}

// Where a storage begins; nullptr for a FakeTensor's, which torch from 2.4 on lets nobody ask in the usual way.
template <typename Storage>
auto first_byte(Storage& storage, int) -> decltype(storage._mutable_data_ptr_no_checks().get()) {
    return storage._mutable_data_ptr_no_checks().get();
}
template <typename Storage>
const void* first_byte(const Storage& storage, long) {
    return storage.data_ptr().get();
}

// The tensors of one call. Reused by the calls of a thread.
struct Tensors {
    std::vector<memscope_touched> touched;
    bool has_real = false;                         // one of this process's memory, were it of no element
    bool has_unreal = false;                       // one without memory though it has elements: fake, meta
    bool has_wrapper = false;                      // a subclass or transform answers the call
    c10::Device device{c10::DeviceType::CPU, -1};  // of an accelerator, once one is there

    void clear() {
        touched.clear();
        has_real = has_unreal = has_wrapper = false;
        device = c10::Device(c10::DeviceType::CPU, -1);
    }

    void add(const at::Tensor& tensor, Access access) {
        const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
        if (!tensor.defined() || impl->is_wrapped_number()) return;  // a number of Python's is no tensor of the program
        static const c10::DispatchKeySet wrappers({c10::DispatchKey::Functionalize, c10::DispatchKey::FuncTorchBatched,
                                                   c10::DispatchKey::FuncTorchGradWrapper, c10::DispatchKey::Batched});
        if (impl->key_set().has_any(wrappers) || (impl->key_set().has(c10::DispatchKey::Python) &&
                                                  !c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::Python))) {
            has_wrapper = true;
            return;
        }
        if (!impl->has_storage()) return;  // sparse and opaque ones
        c10::StorageImpl* storage = impl->unsafe_storage().unsafeGetStorageImpl();
        const auto base = reinterpret_cast<unsigned long long>(first_byte(*storage, 0));
        const long long bytes = static_cast<long long>(impl->numel()) * static_cast<long long>(impl->itemsize());
        if (base == 0 && bytes != 0) {
            has_unreal = true;
            return;
        }
        const short type = device_type_of(impl->device_type());
        has_real = true;
        if (type != kNone && (device.index() < 0 || device.is_cpu())) device = impl->device();
        if (type == kNone || bytes == 0 || access == Access::NONE || touched.size() >= kMostTensors) return;
        const auto offset = static_cast<unsigned long long>(impl->storage_offset()) * impl->itemsize();
        touched.push_back({base + offset, base, bytes, static_cast<long long>(storage->nbytes()),
                           reinterpret_cast<const long long*>(impl->sizes().data()),
                           dtype_name(c10::typeMetaToScalarType(impl->dtype())), static_cast<unsigned>(impl->dim()),
                           static_cast<int>(c10::typeMetaToScalarType(impl->dtype())), static_cast<unsigned>(access),
                           type, static_cast<short>(impl->device().is_cpu() ? 0 : impl->device().index()),
                           static_cast<unsigned char>(impl->is_non_overlapping_and_dense() ? 0 : 1)});
    }

    void add(const c10::IValue& value, Access access) {
        if (value.isTensor()) {
            add(value.toTensor(), access);
        } else if (value.isTensorList()) {
            for (const at::Tensor& tensor : value.toTensorList()) add(tensor, access);
        } else if (value.isList()) {  // optional tensors, lists of lists
            const auto list = value.toListRef();
            if (list.empty() || !(list[0].isTensor() || list[0].isNone() || list[0].isList() || list[0].isTensorList()))
                return;
            for (const c10::IValue& one : list) add(one, access);
        } else if (value.isTuple()) {
            for (const c10::IValue& one : value.toTupleRef().elements()) add(one, access);
        }
    }
};

// A call of this thread that is observed now. is_silent: torch tells this thread of no call until it ends.
struct Open {
    const at::RecordFunction* call = nullptr;
    const Plan* plan = nullptr;
    c10::Device device{c10::DeviceType::CPU, -1};
    memscope_running running;
    std::array<unsigned long long, 8> storages;  // that it was given: a return in one of them is no new memory
    std::size_t storage_count = 0;
    c10::DeviceType device_type = c10::DeviceType::CPU;
    unsigned inner_calls = 0;
    bool is_silent = false;
};

struct Thread {
    unsigned open_count = 0;
    bool is_inner_wanted = false;  // as it was when the outermost began
    bool is_in_node = false;       // as was told last
    Open open[kMostOpen];          // the innermost last
    Tensors tensors;
};

// One look-up of thread-local storage for each callback: in a library that was loaded late each is a call of the
// loader's.
__thread Thread* t_thread = nullptr;
__thread bool t_is_over = false;  // the thread ends: its last calls are not observed

struct EndOfThread {
    bool is_awaited = false;
    ~EndOfThread() {
        delete t_thread;
        t_thread = nullptr;
        t_is_over = true;
    }
};
thread_local EndOfThread t_end;

__attribute__((noinline)) Thread* make_thread() {
    if (t_is_over) return nullptr;
    t_thread = new Thread;
    t_end.is_awaited = true;  // its first use has it destroyed when the thread ends
    return t_thread;
}

// Nobody but us hears of calls on this thread. (A callback that torch samples may look as if it were not there.)
bool is_alone() {
    if (at::hasThreadLocalCallbacks()) return false;
    // The other scopes are those of builds for phones and of the static runtime.
    constexpr std::pair<at::RecordScope, std::size_t> kOurs[] = {{at::RecordScope::FUNCTION, 1},
                                                                 {at::RecordScope::BACKWARD_FUNCTION, 0},
                                                                 {at::RecordScope::TORCHSCRIPT_FUNCTION, 0},
                                                                 {at::RecordScope::USER_SCOPE, 0}};
    for (const auto& [scope, ours] : kOurs) {
        const auto all = at::getStepCallbacksUnlessEmpty(scope);
        if ((all.has_value() ? all->callbacks_.size() : 0) > ours) return false;
    }
    return true;
}

bool is_autocast(const Plan& plan) {
    const auto acts = [](c10::DispatchKey key) { return !c10::impl::tls_is_dispatch_key_excluded(key); };
    return (plan.casts_cpu && acts(c10::DispatchKey::AutocastCPU)) ||
           (plan.casts_cuda && acts(c10::DispatchKey::AutocastCUDA)) ||
           (plan.casts_npu && acts(c10::DispatchKey::AutocastPrivateUse1));
}

bool is_flagged(const Plan& plan, c10::ArrayRef<const c10::IValue> given) {
    const auto flag = static_cast<std::size_t>(plan.flag);
    return plan.flag >= 0 && flag < given.size() && given[flag].isBool() && given[flag].toBool();
}

// Where a call runs that was given no tensor of a card: a copy to one, say. False: on no device that has memory.
bool device_of_options(c10::ArrayRef<const c10::IValue> given, c10::Device& device) {
    for (const c10::IValue& value : given)
        if (value.isDevice()) device = value.toDevice();
    if (device_type_of(device.type()) == kNone) return false;
    if (!device.is_cpu() && device.index() < 0) device = c10::impl::VirtualGuardImpl(device.type()).getDevice();
    return true;
}

// Watched blocks are looked at when the operators of before are done, and the operator itself.
void wait_for(c10::Device device, const memscope_running* running) {
    const short type = device_type_of(device.type());
    const auto index = static_cast<short>(device.is_cpu() ? 0 : device.index());
    if (g_sink->waits(running, type, index) == 0) return;
    const c10::impl::VirtualGuardImpl guard(device.type());
    guard.synchronizeStream(guard.getStream(device));
}

// Tells for which node of the graph this call is, which autograd runs. (A callback at nodes would be told the same, but
// makes torch do for each node what it does for an operator, and make up its name.)
bool tell_node(Thread& thread) {
    const bool is_backward = torch::autograd::get_current_graph_task_id() != -1;
    if (!is_backward && !thread.is_in_node) return false;
    thread.is_in_node = false;
    if (is_backward) {
        if (const auto node = torch::autograd::get_current_node()) {
            thread.is_in_node = true;
            g_sink->node(node->thread_id(), static_cast<long long>(node->sequence_nr()));
        }
    }
    if (!thread.is_in_node) g_sink->node(0, -1);
    return is_backward;
}

void begin(const at::RecordFunction& call, const Plan* plan, unsigned wanted, bool is_backward, Thread& thread) {
    if (plan == nullptr || is_autocast(*plan)) return;
    if (c10::impl::TorchDispatchModeTLS::any_modes_set()) return;
    if (at::in_parallel_region()) return;  // a helper of a kernel that runs on another thread
    const auto given = call.inputs();
    Tensors& tensors = thread.tensors;
    tensors.clear();
    for (std::size_t i = 0; i < given.size(); ++i) {
        Access access = i < plan->arguments.size() ? plan->arguments[i] : Access::READ;
        if (access == Access::WRITE_IF_FLAG) access = is_flagged(*plan, given) ? Access::WRITE : Access::READ;
        tensors.add(given[i], access);
        if (tensors.has_wrapper) return;
    }
    if (tensors.has_unreal && !tensors.has_real) return;
    c10::Device device = tensors.device;
    if (device.is_cpu()) {
        c10::Device asked = device;
        if (device_of_options(given, asked))
            device = asked;
        else if (!tensors.has_real)
            return;
    }
    if ((wanted & MEMSCOPE_WANTS_LOOKS) != 0) wait_for(device, nullptr);
    Open& open = thread.open[thread.open_count];
    open.device = device;
    open.storage_count = 0;
    for (const memscope_touched& tensor : tensors.touched)
        if (open.storage_count < open.storages.size()) open.storages[open.storage_count++] = tensor.storage;
    const memscope_called called{plan->name.data(),
                                 static_cast<unsigned>(plan->name.size()),
                                 device_type_of(device.type()),
                                 static_cast<short>(device.is_cpu() ? 0 : device.index()),
                                 is_backward,
                                 0,
                                 1};
    g_sink->begin(&open.running, &called, tensors.touched.data(), static_cast<unsigned>(tensors.touched.size()));
    open.plan = plan;
    open.call = &call;
    open.device_type = device.type();
    open.inner_calls = 0;
    ++thread.open_count;
    if (plan->group >= 0 && open.running.has_started != 0) begin_collective(*plan, given);
}

// What it returned that lies in no storage which it was given, once the collective that it may have been is told.
void find_returned(const at::RecordFunction& call, const Open& open, Tensors& tensors) {
    Collective collective;
    if (open.plan->group >= 0 && end_collective(open.device_type, collective)) {
        const memscope_collective told{collective.group.data(), static_cast<unsigned>(collective.group.size()),
                                       collective.ranks, collective.sequence};
        g_sink->collective(&open.running, &told);
    }
    const auto& returned = call.outputs();
    for (std::size_t i = 0; i < returned.size() && i < open.plan->returns.size(); ++i)
        if (open.plan->returns[i] != Access::NONE) tensors.add(returned[i], open.plan->returns[i]);
    const auto was_given = [&open](const memscope_touched& tensor) {
        const auto last = open.storages.begin() + static_cast<std::ptrdiff_t>(open.storage_count);
        return std::find(open.storages.begin(), last, tensor.storage) != last;
    };
    auto& touched = tensors.touched;
    touched.erase(std::remove_if(touched.begin(), touched.end(), was_given), touched.end());
    if (open.running.times != 0) wait_for(open.device, &open.running);
}

void end(const at::RecordFunction& call, const Open& open, Tensors& tensors) {
    tensors.clear();
    try {
        find_returned(call, open, tensors);
    } catch (...) {  // then what it returned is not told whole
    }
    g_sink->end(&open.running, tensors.touched.data(), static_cast<unsigned>(tensors.touched.size()));
}

// What a kernel of torch's own calls is not wanted, but costs as much as what is: torch boxes its arguments, copies
// references to its results and calls us. So where such kernels call much, torch is told to leave it, unless somebody
// else listens. That is not cheap itself: torch makes up its list of callbacks for all sorts of calls anew, some 3,000
// instructions each time, and as many to undo it. Not around operators of others: threads that they start may inherit
// it.
void silence(Open& open) {
    if (open.plan->makes_inner_calls.load(std::memory_order_relaxed) && is_alone()) {
        open.is_silent = true;
        at::enableRecordFunction(false);
    }
}

std::unique_ptr<at::ObserverContext> started(const at::RecordFunction& call) {
    Thread* thread = t_thread;
    if (thread != nullptr && thread->open_count != 0 && (!thread->is_inner_wanted || thread->open_count == kMostOpen)) {
        ++thread->open[thread->open_count - 1].inner_calls;
        return nullptr;
    }
    const unsigned wanted = g_sink->wanted();
    if (wanted == 0) return nullptr;
    try {
        if (thread == nullptr) thread = make_thread();
        if (thread == nullptr) return nullptr;
        const Plan* plan = g_plans.find(call);
        if (plan != nullptr && plan->is_passed_over) return nullptr;
        const unsigned before = thread->open_count;
        if (before == 0) thread->is_inner_wanted = (wanted & MEMSCOPE_WANTS_INNER) != 0;
        const bool is_backward = tell_node(*thread);
        begin(call, plan, wanted, is_backward, *thread);
        Open* const open = thread->open_count != before ? &thread->open[before] : nullptr;
        if (call.seqNr() >= 0)
            g_sink->forward(call.threadId(), call.seqNr(), open != nullptr ? &open->running : nullptr);
        if (open != nullptr && !thread->is_inner_wanted) silence(*open);
    } catch (...) {  // then this call is not observed
    }
    return nullptr;
}

void ended(const at::RecordFunction& call, at::ObserverContext* /*none*/) {
    Thread* const thread = t_thread;
    if (thread == nullptr || thread->open_count == 0) return;
    Open& open = thread->open[thread->open_count - 1];
    if (open.call != &call) return;
    --thread->open_count;
    try {
        if (open.is_silent) {
            open.is_silent = false;
            at::enableRecordFunction(true);
        } else if (open.inner_calls >= kManyInnerCalls) {
            open.plan->note_inner_calls();
        }
    } catch (...) {
    }
    end(call, open, thread->tensors);
}

int current_stream(short device_type, short device, long long* stream) {
    try {
        const c10::DeviceType type = device_type == kNpu ? c10::DeviceType::PrivateUse1 : c10::DeviceType::CUDA;
        *stream =
            c10::impl::VirtualGuardImpl(type).getStream(c10::Device(type, static_cast<c10::DeviceIndex>(device))).id();
        return 1;
    } catch (...) {
        return 0;
    }
}

std::mutex g_switching;
unsigned g_switched = 0;
at::CallbackHandle g_callback = at::INVALID_CALLBACK_HANDLE;

}  // namespace
}  // namespace memscope::observer

#define MEMSCOPE_API extern "C" __attribute__((visibility("default")))

MEMSCOPE_API int memscope_observe(const memscope_operator_sink* sink) {
    if (sink->version != MEMSCOPE_OPERATOR_SINK_VERSION) return 1;
    memscope::observer::g_sink = sink;
    sink->streams_by(memscope::observer::current_stream);
    return 0;
}

MEMSCOPE_API void memscope_switch(unsigned wanted) {
    using namespace memscope::observer;
    const std::lock_guard<std::mutex> lock(g_switching);
    if (g_switched == wanted) return;
    g_switched = wanted;
    if (g_callback != at::INVALID_CALLBACK_HANDLE) at::removeCallback(g_callback);
    g_callback = at::INVALID_CALLBACK_HANDLE;
    if (wanted == 0) return;
    // Results are copied for who needs them: only for accesses.
    g_callback = at::addGlobalCallback(at::RecordFunctionCallback(started, ended)
                                           .needsInputs(true)
                                           .needsOutputs((wanted & MEMSCOPE_WANTS_ACCESSES) != 0)
                                           .scopes({at::RecordScope::FUNCTION}));
}
