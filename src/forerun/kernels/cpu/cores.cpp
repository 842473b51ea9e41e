#include "cores.h"

#include <algorithm>
#include <fstream>
#include <set>
#include <string>
#include <thread>

#if defined(__linux__)
#include <sched.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace forerun {
namespace {

int num_hardware_threads() { return int(std::max(1u, std::thread::hardware_concurrency())); }

#if defined(__linux__)
// Each core once: the processors of one have the same siblings. A processor whose siblings are not known is a core of its own.
int num_allowed_cores() {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed)) return num_hardware_threads();
  std::set<std::string> cores;
  for (int i = 0; i < CPU_SETSIZE; ++i) {
    if (!CPU_ISSET(i, &allowed)) continue;
    const std::string processor = std::to_string(i);
    std::ifstream file("/sys/devices/system/cpu/cpu" + processor + "/topology/thread_siblings_list");
    std::string siblings;
    cores.insert(std::getline(file, siblings) ? siblings : processor);
  }
  return int(cores.size());
}

// cpu.max of the control group (version 2): microseconds of processor time in a period, or "max".
int num_affordable_cores() {
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  double time, period;
  return file >> time >> period ? int(time / period + 0.5) : num_hardware_threads();
}
#endif

}  // namespace

int num_cores() {
#if defined(__linux__)
  return std::max(1, std::min(num_allowed_cores(), num_affordable_cores()));
#elif defined(__APPLE__)
  int cores;  // the fast ones
  size_t bytes = sizeof cores;
  if (!sysctlbyname("hw.perflevel0.physicalcpu", &cores, &bytes, nullptr, 0)) return std::max(1, cores);
  return num_hardware_threads();
#else
  return num_hardware_threads();
#endif
}

}  // namespace forerun
