// AscendCL: capture of graphs, as far as memory goes. What is captured is done at once as well, and a graph keeps none
// of it: there is no aclmdlRIExecuteAsync, so that whoever replays one is told.
#include <mutex>
#include <unordered_map>
#include "acl_rt_impl/functions.h"

namespace {

constexpr int kNone = 0, kActive = 1;

struct Graph {};

std::mutex g_lock;
std::unordered_map<void*, Graph*> g_captured;  // by stream

}  // namespace

aclError aclmdlRICaptureBeginImpl(void* stream, int) {
    std::lock_guard<std::mutex> guard(g_lock);
    Graph*& graph = g_captured[stream];
    if (graph != nullptr) return ACL_INVALID_PARAM;
    graph = new Graph;
    return ACL_OK;
}

aclError aclmdlRICaptureGetInfoImpl(void* stream, int* status, void** model) {
    std::lock_guard<std::mutex> guard(g_lock);
    const auto found = g_captured.find(stream);
    *status = found == g_captured.end() ? kNone : kActive;
    if (model != nullptr) *model = found == g_captured.end() ? nullptr : found->second;
    return ACL_OK;
}

aclError aclmdlRICaptureEndImpl(void* stream, void** model) {
    std::lock_guard<std::mutex> guard(g_lock);
    const auto found = g_captured.find(stream);
    if (found == g_captured.end()) return ACL_INVALID_PARAM;
    *model = found->second;
    g_captured.erase(found);
    return ACL_OK;
}

aclError aclmdlRIDestroyImpl(void* model) {
    delete static_cast<Graph*>(model);
    return ACL_OK;
}
