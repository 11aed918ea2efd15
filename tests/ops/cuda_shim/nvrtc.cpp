// Replaces libnvrtc: compiles with a C++ compiler against shim.h, to a shared object instead of a cubin.
// SHIM_COMMAND is the compiler with its flags; without it, images have the header of a GPU's and no code.
// NVRTC_LOG, if set, names a file to which a line is appended for each compilation.
// NVRTC_MEET, if set, is the number of compilations that wait for each other; one that waits 20 seconds in vain fails.
#include <elf.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <mutex>
#include <regex>
#include <string>
#include <utility>
#include <vector>

namespace {

struct Program {
  std::string source, log, image;
  std::vector<std::pair<std::string, std::string>> headers;  // name, text
};

std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

Program* program_of(void* handle) { return static_cast<Program*>(handle); }

// Waits until NVRTC_MEET compilations have started. Returns false after 20 seconds.
bool meet() {
  static std::mutex mutex;
  static std::condition_variable arrived;
  static int count = 0;
  const char* wanted = std::getenv("NVRTC_MEET");
  if (wanted == nullptr) return true;
  std::unique_lock<std::mutex> lock(mutex);
  ++count, arrived.notify_all();
  return arrived.wait_for(lock, std::chrono::seconds(20), [&] { return count >= std::atoi(wanted); });
}

}  // namespace

extern "C" {

int nvrtcVersion(int* major, int* minor) { return *major = 0, *minor = 0; }
int nvrtcGetNumSupportedArchs(int* count) { return *count = 2, 0; }
int nvrtcGetSupportedArchs(int* archs) { return archs[0] = 75, archs[1] = 90, 0; }
const char* nvrtcGetErrorString(int) { return "an error of the shim"; }

int nvrtcCreateProgram(void** program, const char* source, const char*, int count, const char* const* texts,
                       const char* const* names) {
  Program* made = new Program{source, "", "", {}};
  for (int i = 0; i < count; ++i) made->headers.emplace_back(names[i], texts[i]);
  *program = made;
  return 0;
}

int nvrtcDestroyProgram(void** program) {
  delete program_of(*program);
  return 0;
}

#ifndef SHIM_COMMAND
int nvrtcCompileProgram(void* handle, int, const char* const*) {
  Elf64_Ehdr header{};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_machine = EM_CUDA;
  program_of(handle)->image.assign(reinterpret_cast<const char*>(&header), sizeof header);
  return 0;
}
#else
int nvrtcCompileProgram(void* handle, int, const char* const*) {
  Program& program = *program_of(handle);
  if (!meet()) return program.log = "error: the other compilations of NVRTC_MEET did not start\n", 6;
  static std::atomic<int> count_so_far{0};
  const std::filesystem::path folder = std::filesystem::temp_directory_path() /
      ("lightconv-shim-" + std::to_string(getpid()) + "-" + std::to_string(count_so_far++));
  if (!std::filesystem::create_directory(folder)) return 1;
  const std::string base = (folder / "kernel").string(), object = base + ".so", log = base + ".log";
  std::smatch kernel;  // if there is no match, the compiler reports an error
  std::regex_search(program.source, kernel, std::regex("__launch_bounds__.* (\\w+)\\("));
  std::ofstream(base + ".cpp") << "#include \"shim.h\"\n" << program.source
      << "extern \"C\" __attribute__((visibility(\"default\"))) void shim_run_" << kernel[1] << "(unsigned blocks, int threads, int bytes, "
         "const void* args) {\n  shim::run(blocks, threads, bytes, [](const void* at) { shim::call(&" << kernel[1] << ", at); }, args);\n}\n";
  for (const auto& [name, text] : program.headers) {
    std::filesystem::create_directories((folder / name).parent_path());
    std::ofstream(folder / name) << text;
  }
  const std::string command =
      std::string(SHIM_COMMAND " -shared -I") + folder.string() + " " + base + ".cpp -o " + object + " 2> " + log;
  const int failed = std::system(command.c_str());
  program.log = read(log);
  program.image = read(object);
  if (const char* record = std::getenv("NVRTC_LOG")) std::ofstream(record, std::ios::app) << "compiled\n";
  std::filesystem::remove_all(folder);
  return failed == 0 ? 0 : 6;
}
#endif

int nvrtcGetProgramLogSize(void* handle, size_t* size) { return *size = program_of(handle)->log.size(), 0; }
int nvrtcGetProgramLog(void* handle, char* log) {
  std::memcpy(log, program_of(handle)->log.data(), program_of(handle)->log.size());
  return 0;
}
int nvrtcGetCUBINSize(void* handle, size_t* size) { return *size = program_of(handle)->image.size(), 0; }
int nvrtcGetCUBIN(void* handle, char* image) {
  std::memcpy(image, program_of(handle)->image.data(), program_of(handle)->image.size());
  return 0;
}
int nvrtcGetPTXSize(void* handle, size_t* size) { return nvrtcGetCUBINSize(handle, size); }
int nvrtcGetPTX(void* handle, char* image) { return nvrtcGetCUBIN(handle, image); }
}
