"""What compilers say, and what command lines make."""
import pytest

from ramgate.command_lines import Command, ran_out_of_memory


@pytest.mark.parametrize('status, output', [
    (137, ''),
    (1, 'c++: fatal error: Killed signal terminated program cc1plus\ncompilation terminated.\n'),
    (1, 'g++: internal compiler error: Killed (program cc1plus)\n'),
    (1, "nvcc error   : 'cicc' died due to signal 9 (Kill signal)\n"),
    (1, "nvcc error   : 'ptxas' died due to signal 9 (Kill signal)\n"),
    (1, 'virtual memory exhausted: Cannot allocate memory\n'),
    (1, 'cc1plus: out of memory allocating 65536 bytes after a total of 14696448 bytes\n'),
    (1, "a.cpp: In function 'f':\ncc1plus: out of memory allocating 4072 bytes after a total of 21524480 bytes\n"),
    (1, "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n"),
    (1, 'collect2: fatal error: ld terminated with signal 9 [Killed]\n'),
    (1, 'LLVM ERROR: out of memory\n'),
    (1, 'clang++: error: unable to execute command: Killed\n'),
    (1, 'ptxas fatal   : Memory allocation failure\n'),
    (1, '/usr/bin/ld: final link failed: memory exhausted\n'),
    (1, '/usr/bin/ld: main.o: memory exhausted\n'),
    (1, 'sh: line 1: 4711 Killed                  gcc -c x.c\n'),
])
def test_words_for_out_of_memory(status, output):
    assert ran_out_of_memory(status, output, False)


@pytest.mark.parametrize('output', [
    'a.cpp:3:5: error: expected a semicolon\n',
    'a.cpp:3:5: error: no member bad_alloc\n    3 |  throw std::bad_alloc();\n      |        ^\n',
    'a.cpp:3: error: "out of memory"\n',
    'a.cpp(12): error: identifier "Killed" is undefined\n',
    'a.cpp:1:2: error: #error LLVM ERROR: out of memory\n',
    'a.cpp:9:1: error: real\ng++: fatal error: Killed signal terminated program cc1plus\n',
    'collect2: error: ld returned 1 exit status\n',
    '',
])
def test_words_that_are_none(output):
    assert not ran_out_of_memory(1, output, False)


def test_success_is_never_out_of_memory():
    assert not ran_out_of_memory(0, 'cc1plus: out of memory allocating 1 bytes', True)


@pytest.mark.parametrize('line, name, language', [
    ('g++ -O2 -c /src/a.cpp -o x/a.cpp.o', 'x/a.cpp.o', 'CXX'),
    ('nvcc -x cu -c k.cu -o k.cu.o', 'k.cu.o', 'CUDA'),
    ('gcc a.o b.o -o prog', 'prog', 'LINK'),
    ('g++ a.cpp -o prog', 'prog', 'LINK'),
    ('gcc -c b.c', 'b.c', 'C'),
    ('gcc -c b.c -o /tmp/pip-req-build-x1y2/build/temp/src/b.o', 'build/temp/src/b.o', 'C'),
])
def test_command_lines(line, name, language):
    command = Command('/build', line.split(), '/build')
    assert (command.name, command.language) == (name, language)
