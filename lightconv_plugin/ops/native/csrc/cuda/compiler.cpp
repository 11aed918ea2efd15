#include "cuda/compiler.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iomanip>
#include <iterator>
#include <map>
#include <mutex>
#include <sstream>
#include <stdexcept>
#include <system_error>
#include <vector>

#include "cuda/driver.h"

namespace lightconv::cuda {
namespace {

// The functions of NVRTC that are used, under their own names. A result of 0 means success.
struct Nvrtc {
  Library library;
  int (*nvrtcVersion)(int* major, int* minor) = library["nvrtcVersion"];
  int (*nvrtcGetNumSupportedArchs)(int* count) = library["nvrtcGetNumSupportedArchs"];
  int (*nvrtcGetSupportedArchs)(int* archs) = library["nvrtcGetSupportedArchs"];
  int (*nvrtcCreateProgram)(void** program, const char* source, const char* name, int headers, const char* const* texts,
                            const char* const* names) = library["nvrtcCreateProgram"];
  int (*nvrtcCompileProgram)(void* program, int count, const char* const* options) = library["nvrtcCompileProgram"];
  int (*nvrtcGetProgramLogSize)(void* program, size_t* size) = library["nvrtcGetProgramLogSize"];
  int (*nvrtcGetProgramLog)(void* program, char* log) = library["nvrtcGetProgramLog"];
  int (*nvrtcGetCUBINSize)(void* program, size_t* size) = library["nvrtcGetCUBINSize"];
  int (*nvrtcGetCUBIN)(void* program, char* image) = library["nvrtcGetCUBIN"];
  int (*nvrtcGetPTXSize)(void* program, size_t* size) = library["nvrtcGetPTXSize"];
  int (*nvrtcGetPTX)(void* program, char* image) = library["nvrtcGetPTX"];
  int (*nvrtcDestroyProgram)(void** program) = library["nvrtcDestroyProgram"];
  const char* (*nvrtcGetErrorString)(int result) = library["nvrtcGetErrorString"];
};

std::mutex mutex;  // guards the two variables below; NVRTC itself is safe to call from several threads
Settings chosen;
std::map<std::string, Nvrtc> opened;  // by path

Settings settings() {
  const std::lock_guard<std::mutex> lock(mutex);
  return chosen;
}

const Nvrtc& nvrtc() {
  const std::lock_guard<std::mutex> lock(mutex);
  const auto known = opened.find(chosen.nvrtc);
  if (known != opened.end()) return known->second;
  void* library = dlopen(chosen.nvrtc.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw std::runtime_error(std::string("lightconv: NVRTC cannot be loaded: ") + dlerror());
  const Library found{library, chosen.nvrtc + ", which must be of CUDA 12.8 or later, has no"};
  return opened.emplace(chosen.nvrtc, Nvrtc{found}).first->second;
}

// Returns the content of a file, or an empty string if there is none.
std::string content_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

const size_t DIGEST_BYTES = 16;

std::string digest_of(const std::string& image) {
  std::ostringstream text;
  text << std::hex << std::setfill('0') << std::setw(DIGEST_BYTES) << std::hash<std::string>{}(image);
  return text.str();
}

// A cached file is an image followed by its digest. Returns the image, or an empty string if there is no file or the
// digest does not match (a full disk, an interrupted copy). A damaged file is reported, and its kernel compiled again.
std::string read_cached(const std::string& path) {
  std::string image = content_of(path);
  if (image.empty()) return image;
  const size_t size = image.size() < DIGEST_BYTES ? 0 : image.size() - DIGEST_BYTES;
  const std::string digest = image.substr(size);
  image.resize(size);
  if (digest_of(image) == digest) return image;
  std::fprintf(stderr, "lightconv_plugin: the compiled kernel %s was damaged; it is compiled again\n", path.c_str());
  return "";
}

// The file is written under a temporary name and then renamed, so that nobody reads half a file. Errors are ignored: if
// the folder is not writable, kernels are compiled again in the next process.
void write_cached(const std::string& path, const std::string& image) {
  static std::atomic<int> count{0};
  const std::string draft = path + "." + std::to_string(getpid()) + "." + std::to_string(count++);
  std::ofstream file(draft, std::ios::binary);
  file << image << digest_of(image);
  file.close();
  std::error_code ignored;
  if (file) std::filesystem::rename(draft, path, ignored);
  else std::filesystem::remove(draft, ignored);
}

// Returns the newest architecture that NVRTC supports and the GPU runs: the GPU's own, or an older one, whose PTX the
// driver compiles for the GPU.
int best_architecture(int capability, const std::string& version) {
  int count = 0;
  nvrtc().nvrtcGetNumSupportedArchs(&count);
  std::vector<int> known(count);
  nvrtc().nvrtcGetSupportedArchs(known.data());
  int best = 0;
  for (const int arch : known)
    if (arch <= capability) best = std::max(best, arch);
  if (best == 0)
    throw std::runtime_error("lightconv: this GPU is of the architecture sm_" + std::to_string(capability) +
                             ", and the NVRTC of CUDA " + version + " compiles for sm_" +
                             std::to_string(known.empty() ? 0 : *std::min_element(known.begin(), known.end())) +
                             " and later: install a torch that was built for an earlier CUDA");
  return best;
}

std::string first_error(void* program) {
  size_t size = 0;
  nvrtc().nvrtcGetProgramLogSize(program, &size);
  std::string log(size, '\0');
  nvrtc().nvrtcGetProgramLog(program, log.data());
  std::istringstream lines(log);
  std::string line;
  while (std::getline(lines, line))
    if (line.find("error") != std::string::npos) return line;
  return log.substr(0, log.find('\n'));
}

// The source files of the kernels, by the names under which they include each other. NVRTC is given their texts: it
// reads files from disk under a lock, and again for each kernel, so compiling on more threads would not make this
// faster.
struct Headers {
  std::vector<std::string> names, texts;
};

const Headers& headers() {
  static const Headers read = [] {
    Headers headers;
    const std::filesystem::path root = settings().sources;
    const auto add = [&](const std::filesystem::path& path) {
      headers.names.push_back(path.lexically_relative(root).generic_string());
      headers.texts.push_back(content_of(path));
    };
    add(root / "random.h");
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root / "cuda"))
      if (entry.path().extension() == ".cuh" || entry.path().extension() == ".h") add(entry.path());
    return headers;
  }();
  return read;
}

std::vector<const char*> pointers_to(const std::vector<std::string>& texts) {
  std::vector<const char*> pointers;
  for (const std::string& text : texts) pointers.push_back(text.c_str());
  return pointers;
}

std::string run(const std::string& source, const std::vector<std::string>& options, bool machine_code) {
  const Nvrtc& rtc = nvrtc();
  const auto must = [&](int result, const char* call) {
    if (result != 0)
      throw std::runtime_error(std::string("lightconv: ") + call + " failed: " + rtc.nvrtcGetErrorString(result));
  };
  struct Program {
    void* handle = nullptr;
    ~Program() {
      if (handle != nullptr) nvrtc().nvrtcDestroyProgram(&handle);
    }
  } program;
  must(rtc.nvrtcCreateProgram(&program.handle, source.c_str(), "lightconv.cu",
                              static_cast<int>(headers().names.size()), pointers_to(headers().texts).data(),
                              pointers_to(headers().names).data()),
       "nvrtcCreateProgram");
  const std::vector<const char*> pointers = pointers_to(options);
  if (rtc.nvrtcCompileProgram(program.handle, static_cast<int>(pointers.size()), pointers.data()) != 0)
    throw std::runtime_error("lightconv: NVRTC failed: " + first_error(program.handle));
  size_t size = 0;
  must((machine_code ? rtc.nvrtcGetCUBINSize : rtc.nvrtcGetPTXSize)(program.handle, &size), "nvrtcGetCUBINSize");
  std::string image(size, '\0');
  must((machine_code ? rtc.nvrtcGetCUBIN : rtc.nvrtcGetPTX)(program.handle, image.data()), "nvrtcGetCUBIN");
  return image;
}

}  // namespace

std::atomic<int> configurations{0};

void configure(const Settings& settings) {
  const std::lock_guard<std::mutex> lock(mutex);
  chosen = settings, ++configurations;
}

std::string compile(const std::string& source, int capability) {
  const Settings chosen = settings();
  if (chosen.nvrtc.empty()) throw std::runtime_error("lightconv: call cuda_configure before the first kernel");
  int major = 0, minor = 0;
  nvrtc().nvrtcVersion(&major, &minor);
  const std::string version = std::to_string(major) + '.' + std::to_string(minor);
  const int arch = best_architecture(capability, version);
  const bool machine_code = arch == capability;
  const std::vector<std::string> options = {
      "--std=c++20", "--device-as-default-execution-space",
      std::string("--gpu-architecture=") + (machine_code ? "sm_" : "compute_") + std::to_string(arch)};

  std::string key = version + '\n' + source;
  for (const std::string& option : options) key += '\n' + option;
  const std::string name = std::to_string(std::hash<std::string>{}(key));
  const std::string path = chosen.cache + "/" + name + ".kernel";
  std::string image = read_cached(path);
  if (image.empty()) write_cached(path, image = run(source, options, machine_code));
  return image;
}

}  // namespace lightconv::cuda
