// Where a stretch of work spends its time, by LibTorch's own profiler, as C functions for `src/shim/profile.rs`.

#include "guarded.h"

#include <torch/csrc/autograd/profiler_kineto.h>

#include <cstring>
#include <map>
#include <set>
#include <sstream>
#include <string>

namespace {

using torch::profiler::impl::ActivityType;

std::set<ActivityType> activities(bool device) {
  std::set<ActivityType> both{ActivityType::CPU};
  if (device) both.insert(ActivityType::CUDA);
  return both;
}

struct Sum {
  uint64_t calls = 0;
  uint64_t nanoseconds = 0;
};

}  // namespace

extern "C" {

int terrashard_profile_start(char** message, bool device) {
  return terrashard::guarded(message, [&] {
    torch::profiler::impl::ProfilerConfig config(torch::profiler::impl::ProfilerState::KINETO);
    torch::autograd::profiler::prepareProfiler(config, activities(device));
    torch::autograd::profiler::enableProfiler(config, activities(device));
  });
}

// text: one line for each name, "d" for the device or "h" for the host, calls, nanoseconds and the name, separated by tabs; the
// caller frees it with `terrashard_free_text`.
int terrashard_profile_finish(char** message, char** text) {
  return terrashard::guarded(message, [&] {
    auto result = torch::autograd::profiler::disableProfiler();
    std::map<std::pair<bool, std::string>, Sum> sums;
    for (const auto& event : result->events()) {
      auto& sum = sums[{event.deviceType() != c10::DeviceType::CPU, event.name()}];
      sum.calls += 1;
      sum.nanoseconds += event.durationNs();
    }
    std::ostringstream lines;
    for (const auto& [key, sum] : sums) {
      lines << (key.first ? 'd' : 'h') << '\t' << sum.calls << '\t' << sum.nanoseconds << '\t' << key.second << '\n';
    }
    *text = strdup(lines.str().c_str());
  });
}

}  // extern "C"
