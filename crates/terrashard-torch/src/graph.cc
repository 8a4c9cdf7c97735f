// Graphs of CUDA by LibTorch's own class for them, which is opened at run time, since this is built without CUDA: it has the caching
// allocator put what a graph uses aside. A graph is launched past that class, which would start two more kernels for the
// state of a random generator.
//
// A graph reads and writes the places it was made with. Parameters stay where they are; what a graph gives out lies in memory that is
// its own from before it is made, and so do the inputs of the next one. A graph is run only if all its inputs lie where they did and nobody
// holds what it gave out before: else the call runs as it would without. All graphs share the memory of what lives within a run, which
// no result is ever in: so they may run in any order, and whatever the host does, no value is ever another.

#include "graph.h"

#include "guarded.h"
#include "library.h"
#include "views.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace terrashard {
namespace {

using at::Tensor;
using Pool = std::pair<unsigned long long, unsigned long long>;

// Above this the GPU takes longer for the kernels of a call than the host takes to start them.
constexpr int64_t kMostBytes = int64_t{12} << 20;
// What graphs hold is at most this part of a GPU's memory.
constexpr int64_t kShare = 32;
// While less than this part of it is left, no graph is made: what is nearly used up is left to what needs it.
constexpr int64_t kLeft = 8;
// Calls for a layer before the first that is made a graph of: by then what is made once is made.
constexpr int kCallsBefore = 2;
// Calls that graphs did not serve after which those are given up that have served fewer.
constexpr int kOthersBeforeTheEnd = 24;
// Graphs for one layer: where inputs keep moving about, those after the second copy them.
constexpr int kMostGraphs = 4, kGraphsBeforeCopies = 2;
// Other threads may do with the GPU what they like while a graph is made.
constexpr unsigned kRelaxed = 2;
// More than LibTorch's class takes.
constexpr size_t kClassBytes = 4096;

struct Functions {
  void (*construct)(void*, bool);
  void (*begin)(void*, Pool, unsigned);
  void (*end)(void*);
  void* (*executable)(void*);
  void (*destroy)(void*);
  Pool (*pool)();
  int (*launch)(void* executable, void* stream);
  int (*memory)(size_t* free, size_t* total);
  bool works = false;

  static const Functions& get() {
    static const Functions functions;
    return functions;
  }

 private:
  Functions() {
    void* torch = dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_NOLOAD);
    void* driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (torch == nullptr || driver == nullptr) return;
    works = find(torch, "_ZN2at4cuda9CUDAGraphC1Eb", construct) &&
            find(torch, "_ZN2at4cuda9CUDAGraph13capture_beginESt4pairIyyE21cudaStreamCaptureMode", begin) &&
            find(torch, "_ZN2at4cuda9CUDAGraph11capture_endEv", end) &&
            find(torch, "_ZN2at4cuda9CUDAGraph19raw_cuda_graph_execEv", executable) &&
            find(torch, "_ZN2at4cuda9CUDAGraphD1Ev", destroy) && find(torch, "_ZN2at4cuda17graph_pool_handleEv", pool) &&
            find(driver, "cuGraphLaunch", launch) && find(driver, "cuMemGetInfo_v2", memory);
  }
};

thread_local void* stream_now = nullptr;
std::atomic<bool> is_on{true};
std::atomic<int64_t> most_bytes{INT64_MAX};

// LibTorch's object for a graph.
class Graph {
 public:
  Graph() : object_(std::aligned_alloc(64, kClassBytes)) { Functions::get().construct(object_, false); }
  Graph(const Graph&) = delete;
  ~Graph() {
    Functions::get().destroy(object_);
    std::free(object_);
  }

  void* object() const { return object_; }

 private:
  void* object_;
};

// What a call is, but for where its inputs lie.
using Form = std::vector<int64_t>;
using Places = c10::SmallVector<const void*, 24>;

// No memory for any output, without taking some for that: also what never runs by a graph passes here.
using Anywhere = c10::SmallVector<Tensor, 16>;

// The memory of what a call gives out. One for all graphs of a layer's calls of one form: when an input moves and another graph is made,
// the inputs of what comes after do not.
class Results {
 public:
  Results(const Tensor* const* like, size_t count) {
    for (size_t i = 0; i < count; i++) {
      const auto* out = like[i];
      outs_.push_back(out ? at::empty_strided(out->sizes(), out->strides(), out->options()) : Tensor());
      bytes_ += out ? static_cast<int64_t>(outs_.back().storage().nbytes()) : 0;
    }
  }

  // Whether nobody outside holds any of them.
  bool is_free() const {
    return std::all_of(outs_.begin(), outs_.end(),
                       [](const Tensor& out) { return !out.defined() || out.storage().use_count() == 1; });
  }

  const std::vector<Tensor>& outs() const { return outs_; }
  int64_t bytes() const { return bytes_; }

 private:
  std::vector<Tensor> outs_;
  int64_t bytes_ = 0;
};

struct Record {
  Form form;
  Places places;
  // For each moving input: what the graph reads instead of it, if anything.
  std::vector<Tensor> copies;
  std::unique_ptr<Graph> graph;
  void* executable = nullptr;
  std::shared_ptr<const Results> results;

  bool fits(const Places& there) const {
    for (size_t i = 0; i < places.size(); i++) {
      const bool copied = i < copies.size() && copies[i].defined();
      if (!copied && places[i] != there[i]) return false;
    }
    return true;
  }
};

struct Layer {
  // Those by graphs, and the others.
  int64_t runs = 0, others = 0;
  bool is_given_up = false;
  std::vector<std::unique_ptr<Record>> records;

  // Graphs that seldom run are no use for what they hold: parameters that are gathered for each use, for instance, lie elsewhere
  // each time.
  bool is_hopeless() const { return others > kOthersBeforeTheEnd && runs < others; }

  int64_t bytes() const {
    std::set<const Results*> all;
    for (const auto& record : records) all.insert(record->results.get());
    return std::accumulate(all.begin(), all.end(), int64_t{0},
                           [](int64_t sum, const Results* results) { return sum + results->bytes(); });
  }
};

struct Registry {
  std::mutex mutex;
  std::map<std::pair<int64_t, const void*>, Layer> layers;
  std::optional<Pool> pool;
  int64_t held = 0;
  int64_t made = 0, run = 0;
  bool has_failed = false;

  // Never freed: kernels may run until the process ends.
  static Registry& get() {
    static auto& registry = *new Registry;
    return registry;
  }
};

Form form_of(const Task& task) {
  Form form{task.kind, static_cast<int64_t>(task.outs)};
  form.insert(form.end(), task.settings.begin(), task.settings.end());
  int64_t wanted = 0;
  for (size_t i = 0; i < task.outs; i++) wanted = 2 * wanted + (task.wanted == nullptr || task.wanted[i]);
  form.push_back(wanted);
  for (const auto* input : task.inputs) {
    form.push_back(input == nullptr ? -1 : static_cast<int64_t>(input->scalar_type()));
    if (input == nullptr) continue;
    form.push_back(input->dim());
    form.insert(form.end(), input->sizes().begin(), input->sizes().end());
    form.insert(form.end(), input->strides().begin(), input->strides().end());
  }
  return form;
}

Places places_of(const Task& task) {
  Places places;
  for (const auto* input : task.inputs) places.push_back(input == nullptr ? nullptr : input->const_data_ptr());
  return places;
}

// The stream of a GPU that graphs are made on in this thread.
c10::Stream side_stream(const c10::impl::VirtualGuardImpl& streams, c10::Device device) {
  thread_local std::map<int, c10::Stream> sides;
  const auto place = sides.find(device.index());
  if (place != sides.end()) return place->second;
  return sides.emplace(device.index(), streams.getStreamFromGlobalPool(device)).first->second;
}

// Kernels of this thread go into a graph while there is one of these.
class OnSide {
 public:
  explicit OnSide(c10::Device device)
      : streams_(device.type()), before_(streams_.exchangeStream(side_stream(streams_, device))) {
    stream_now = streams_.getStreamNativeHandle(streams_.getStream(device));
  }
  OnSide(const OnSide&) = delete;
  ~OnSide() {
    stream_now = nullptr;
    streams_.exchangeStream(before_);
  }

 private:
  c10::impl::VirtualGuardImpl streams_;
  c10::Stream before_;
};

void drop_outputs(const Task& task) {
  for (size_t i = 0; i < task.outs; i++) {
    delete task.out[i];
    task.out[i] = nullptr;
  }
}

void give_out(const Task& task, const Record& record) {
  for (size_t i = 0; i < task.outs; i++) {
    const auto& out = record.results->outs()[i];
    // Another view of it, whatever the caller does with that.
    if (out.defined()) task.out[i] = given(viewed(out, out.sizes(), out.strides(), out.storage_offset()));
  }
}

void launch(const Task& task, const Record& record) {
  for (size_t i = 0; i < record.copies.size(); i++) {
    auto copy = record.copies[i];
    if (copy.defined()) copy.copy_(*task.inputs[i]);
  }
  const int error = Functions::get().launch(record.executable, nullptr);
  TORCH_CHECK(error == 0, "the driver cannot start a graph: error ", error);
  give_out(task, record);
}

// Whether an input moves about: it lies elsewhere than for all graphs of the layer, of which there are some.
bool moves_about(const Layer& layer, const Form& form, const void* place, size_t input) {
  int elsewhere = 0;
  for (const auto& record : layer.records) {
    if (record->form != form) continue;
    if (record->places[input] == place) return false;
    elsewhere++;
  }
  return elsewhere >= kGraphsBeforeCopies;
}

// Runs `body`, and makes a record of it, which is not run yet; null if that cannot be. `results`: the memory for that, if there is some.
std::unique_ptr<Record> recorded(const Task& task, Registry& registry, const Layer& layer, Form form, Places places,
                                 std::shared_ptr<const Results> results, Body body) {
  const auto& it = Functions::get();
  auto record = std::make_unique<Record>();
  const Anywhere anywhere(task.outs);
  body(task.inputs.data(), anywhere.data());
  const std::vector<Tensor*> given_out(task.out, task.out + task.outs);
  record->copies.resize(task.moving);
  c10::SmallVector<const Tensor*, 4> moving(task.inputs.begin(), task.inputs.begin() + task.moving);
  for (size_t i = 0; i < task.moving; i++) {
    if (moving[i] == nullptr || (i + 1 < task.moving && !moves_about(layer, form, places[i], i))) continue;
    record->copies[i] = at::empty_strided(moving[i]->sizes(), moving[i]->strides(), moving[i]->options());
    moving[i] = &record->copies[i];
  }
  record->results = results ? std::move(results) : std::make_shared<Results>(given_out.data(), task.outs);
  const auto& outs = record->results->outs();
  if (!registry.pool) registry.pool = it.pool();
  std::fill(task.out, task.out + task.outs, nullptr);
  try {
    const OnSide side(task.inputs[task.layer]->device());
    record->graph = std::make_unique<Graph>();
    it.begin(record->graph->object(), *registry.pool, kRelaxed);
    try {
      body(moving.data(), outs.data());
      for (size_t i = 0; i < task.outs; i++) {
        const auto* from = task.out[i];
        auto to = outs[i];
        TORCH_CHECK((from != nullptr) == to.defined(), "a call gives out other results each time");
        if (from != nullptr && from->const_data_ptr() != to.const_data_ptr()) to.copy_(*from);
      }
      drop_outputs(task);
    } catch (...) {
      // What was begun has to end before its stream can be used again.
      try {
        it.end(record->graph->object());
      } catch (...) {
      }
      throw;
    }
    it.end(record->graph->object());
    record->executable = it.executable(record->graph->object());
  } catch (const std::exception& error) {
    registry.has_failed = true;
    TORCH_WARN("kernels are started one by one, since no graph can be made of them: ", error.what());
    record = nullptr;
  }
  drop_outputs(task);
  std::copy(given_out.begin(), given_out.end(), task.out);
  if (record == nullptr) return nullptr;
  record->form = std::move(form);
  record->places = std::move(places);
  return record;
}

// Whether the GPU, which is the current one, has memory for another graph.
bool has_room(const Registry& registry, c10::Device device) {
  size_t unused = 0, whole = 0;
  if (Functions::get().memory(&unused, &whole) != 0) return false;
  const auto total = std::min(static_cast<int64_t>(whole), most_bytes.load());
  const auto taken = at::accelerator::getDeviceStats(device.index()).reserved_bytes[0].current;
  const auto left = std::min(static_cast<int64_t>(unused), total - taken);
  return left >= total / kLeft && registry.held < total / kShare;
}

// Runs the task by a graph of the layer, or makes one and runs that. False where neither is possible.
bool is_run(const Task& task, Layer& layer, Registry& registry, Body body) {
  auto form = form_of(task);
  auto places = places_of(task);
  std::shared_ptr<const Results> results;
  for (const auto& record : layer.records) {
    if (record->form != form) continue;
    results = record->results;
    if (!results->is_free()) return false;
    if (!record->fits(places)) continue;
    launch(task, *record);
    registry.run++;
    layer.runs++;
    return true;
  }
  if (layer.others < kCallsBefore || layer.records.size() >= kMostGraphs ||
      !has_room(registry, task.inputs[task.layer]->device()))
    return false;
  const bool is_new = results == nullptr;
  auto record = recorded(task, registry, layer, std::move(form), std::move(places), std::move(results), body);
  if (record == nullptr) return true;
  // The first results go: a second set of what is kept for backward may be too much.
  drop_outputs(task);
  launch(task, *record);
  if (is_new) registry.held += record->results->bytes();
  registry.made++;
  layer.runs++;
  layer.records.push_back(std::move(record));
  return true;
}

// Runs the task by a graph where graphs are for such tasks.
bool is_run(const Task& task, Body body) {
  const auto& parameter = *task.inputs[task.layer];
  const auto& x = *task.inputs[0];
  if (!is_on || !parameter.is_cuda() || static_cast<int64_t>(x.nbytes()) > kMostBytes || !Functions::get().works) return false;
  auto& registry = Registry::get();
  std::lock_guard<std::mutex> lock(registry.mutex);
  auto& layer = registry.layers[{task.kind, parameter.const_data_ptr()}];
  if (registry.has_failed || layer.is_given_up) return false;
  const c10::OptionalDeviceGuard guard(parameter.device());
  if (is_run(task, layer, registry, body)) return true;
  layer.others++;
  if (layer.is_hopeless()) {
    registry.held -= layer.bytes();
    layer.records.clear();
    layer.is_given_up = true;
  }
  return false;
}

void forget() {
  auto& registry = Registry::get();
  std::lock_guard<std::mutex> lock(registry.mutex);
  registry.layers.clear();
  registry.held = 0;
}

}  // namespace

void* launch_stream() { return stream_now; }

void limit_graphs(int64_t bytes) { most_bytes = bytes; }

void by_graph(const Task& task, Body body) {
  if (is_run(task, body)) return;
  const Anywhere anywhere(task.outs);
  body(task.inputs.data(), anywhere.data());
}

}  // namespace terrashard

extern "C" {

int terrashard_set_graphs(char** message, bool on) {
  return terrashard::guarded(message, [&] { terrashard::is_on = on; });
}

int terrashard_forget_graphs(char** message) {
  return terrashard::guarded(message, [] { terrashard::forget(); });
}

// out: graphs made, runs of them, bytes that they hold.
int terrashard_graph_counts(char** message, int64_t* out) {
  return terrashard::guarded(message, [&] {
    auto& registry = terrashard::Registry::get();
    std::lock_guard<std::mutex> lock(registry.mutex);
    out[0] = registry.made;
    out[1] = registry.run;
    out[2] = registry.held;
  });
}

}  // extern "C"
