#include "cuda/kernels.h"

#include <algorithm>
#include <atomic>
#include <future>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>
#include <vector>

#include "cuda/compiler.h"
#include "cuda/driver.h"

namespace lightconv::cuda {
namespace {

using Key = std::tuple<int, int, const Kernel*, int, int, int, int, int, int, int>;

Key key_of(int device, const Kernel& kernel, const Case& c, int threads) {
  const int flags = c.dynamic | c.softmax << 1 | c.drop << 2 | c.flip << 3 | c.aligned << 4 | c.tensor_cores << 5 |
                    c.mask << 6 | c.both << 7;
  return {configurations, device, &kernel, static_cast<int>(c.type), c.K, c.R, c.H, c.positions, flags, threads};
}

const int MOST_SHARED_BYTES = 8;  // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES

void* load(int index, const Kernel& kernel, const Case& c, const Grid& grid) {
  const Device& gpu = device(index);
  const std::string image = compile(source_of(kernel, c, grid.threads), gpu.capability);
  const Uncaptured uncaptured;  // the first launch of a kernel may be during the capture of a graph
  void* module = nullptr;
  void* function = nullptr;
  check(driver().cuModuleLoadData(&module, image.data()), "cuModuleLoadData");
  check(driver().cuModuleGetFunction(&function, module, name_of(kernel, c).c_str()), "cuModuleGetFunction");
  if (grid.shared_bytes > SHARED_LIMIT)
    check(driver().cuFuncSetAttribute(function, MOST_SHARED_BYTES, grid.shared_bytes), "cuFuncSetAttribute");
  return function;
}

struct Loaded {
  std::mutex mutex;
  void* function = nullptr;
};

// While a kernel is compiled, only the lock of this kernel is held: threads can compile different kernels at the same
// time.
void* function_of(int index, const Kernel& kernel, const Case& c, const Grid& grid) {
  static std::mutex mutex;
  static std::map<Key, Loaded> functions;  // references to elements of a map stay valid
  std::unique_lock<std::mutex> all(mutex);
  Loaded& loaded = functions[key_of(index, kernel, c, grid.threads)];
  all.unlock();
  const std::lock_guard<std::mutex> own(loaded.mutex);
  if (loaded.function == nullptr) loaded.function = load(index, kernel, c, grid);
  return loaded.function;
}

struct Noted {
  int device;
  const Kernel* kernel;
  Case c;
  Grid grid;
};

std::atomic<bool> gathering{false};
std::mutex noting;
std::map<Key, Noted> noted;

}  // namespace

int64_t gather(bool begin) {
  gathering = begin;
  std::vector<Noted> found;
  {
    const std::lock_guard<std::mutex> lock(noting);
    for (const auto& [key, each] : noted) found.push_back(each);
    noted.clear();
  }
  if (begin) return 0;
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t i = next++; i < found.size(); i = next++) {
      const auto& [index, kernel, c, grid] = found[i];
      const Current current(device(index));
      function_of(index, *kernel, c, grid);
    }
  };
  std::vector<std::future<void>> workers;  // get() rethrows the exception of a thread
  for (unsigned int i = 0; i < std::max(1u, std::thread::hardware_concurrency()); ++i)
    workers.push_back(std::async(std::launch::async, work));
  for (std::future<void>& worker : workers) worker.get();
  return static_cast<int64_t>(found.size());
}

std::string name_of(const Kernel& kernel, const Case& c) {
  std::string title = kernel.title;
  if (title.starts_with("conv")) title = (c.dynamic ? "dynamic_" : "light_") + title;
  if (title.ends_with("_")) title += c.flip ? "grad_x" : "forward";
  static const char* const types[] = {"f32", "f16", "bf16", "f64"};
  std::string name = "lightconv_" + title + "_" + types[static_cast<int>(c.type)];
  const auto number = [&](const char* letter, int value) {
    if (value != 0) name += std::string("_") + letter + std::to_string(value);
  };
  const auto flag = [&](const char* word, bool value) { name += value ? std::string("_") + word : ""; };
  number("K", c.K), number("R", c.R), number("H", c.H), number("T", c.positions);
  flag("softmax", c.softmax), flag("drop", c.drop), flag("aligned", c.aligned), flag("mma", c.tensor_cores);
  flag("mask", c.mask);
  return name;
}

std::string source_of(const Kernel& kernel, const Case& c, int threads) {
  const auto flag = [](bool value) { return value ? ", true" : ", false"; };
  const auto number = [](int value) { return ", " + std::to_string(value); };
  std::string text = std::string("#include \"cuda/") + kernel.file + ".cuh\"\nnamespace lightconv::cuda {\n";
  text += "constexpr Case compiled = {static_cast<Type>(" + std::to_string(static_cast<int>(c.type)) + ")" + number(c.K) +
          number(c.R) + number(c.H) + number(c.positions) + flag(c.dynamic) + flag(c.softmax) +
          flag(c.drop) + flag(c.flip) + flag(c.aligned) + flag(c.tensor_cores) + flag(c.mask) + flag(c.both) + "};\n}\n";
  // Convolutions get at most 128 registers per thread, and the kernel of both gradients 80 if K <= 32 (sm_80 to
  // sm_90). Before sm_80, shared memory holds only one block per multiprocessor anyway. That 1 must be written: without
  // it the compiler aims at more blocks and spills registers. On sm_100, 128 registers are two too few for grad_x with
  // DropConnect. The gradients of the norm also get 128: their grid has two blocks per multiprocessor, which would
  // otherwise run one after the other.
  const std::string name = kernel.name;
  const bool both = name == "backward";
  const bool norm = name == "residual_norm_backward" && c.type != Type::f64;
  const bool limited = both || norm || name == "conv" || name == "band";
  const auto fewest = [&](int together) { return std::to_string(limited ? smaller(together / threads, 16) : 1); };
  const std::string on_90 = fewest(both && c.K <= 32 ? 768 : 512), on_100 = fewest(c.flip && c.drop ? 384 : 512);
  const std::string bounds = std::to_string(threads) + ", __CUDA_ARCH__ < 800 ? 1 : __CUDA_ARCH__ < 1000 ? " +
                             on_90 + " : " + on_100;
  text += "extern \"C\" __global__ void __launch_bounds__(" + bounds + ") " + name_of(kernel, c) + "(const lightconv::cuda::" + kernel.args +
          " args) {\n  extern __shared__ __align__(16) unsigned char shared[];\n  lightconv::cuda::" + kernel.name +
          "<lightconv::cuda::compiled>(args, shared);\n}\n";
  return text;
}

void launch(const Place& place, const Kernel& kernel, const Case& c, const Grid& grid, const void* args) {
  if (grid.blocks <= 0) return;
  if (gathering) {
    const std::lock_guard<std::mutex> lock(noting);
    noted.insert({key_of(place.device, kernel, c, grid.threads), {place.device, &kernel, c, grid}});
    return;
  }
  const Current current(device(place.device));
  void* function = function_of(place.device, kernel, c, grid);
  void* parameters[] = {const_cast<void*>(args)};
  check(driver().cuLaunchKernel(function, static_cast<unsigned int>(grid.blocks), 1, 1, grid.threads, 1, 1,
                                grid.shared_bytes, place.stream, parameters, nullptr),
        "cuLaunchKernel");
}

}  // namespace lightconv::cuda
