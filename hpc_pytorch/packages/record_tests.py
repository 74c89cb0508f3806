"""
Run by the Python that is tested: `record_tests.py RESULTS FILE` runs a file of unittest's as the main program, and
appends to RESULTS when each test begins and how it ends, so that this is known though a test ends the process.
"""
import json
import os
import runpy
import sys
import unittest


class Recorded(unittest.TextTestResult):
    """Writes a line for each test: its name, what is known of it now, and why."""

    def note(self, test, how, why=''):
        with open(sys.record_tests, 'a', encoding='utf-8') as results:
            results.write(json.dumps([test.id(), how, why]) + '\n')

    def startTest(self, test):
        super().startTest(test)
        self.note(test, 'begun', "the process ended while it ran")

    def addSuccess(self, test):
        super().addSuccess(test)
        self.note(test, 'passed')

    def failed(self, test, error):
        self.note(test, 'failed', ': '.join([error[0].__name__] + str(error[1]).strip().splitlines()[-1:]))

    def addError(self, test, error):
        super().addError(test, error)
        self.failed(test, error)

    def addFailure(self, test, error):
        super().addFailure(test, error)
        self.failed(test, error)

    def addSubTest(self, test, subtest, error):
        super().addSubTest(test, subtest, error)
        if error:
            self.failed(test, error)

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.note(test, 'not counted', reason)

    def addExpectedFailure(self, test, error):
        super().addExpectedFailure(test, error)
        self.note(test, 'passed')

    def addUnexpectedSuccess(self, test):
        super().addUnexpectedSuccess(test)
        self.note(test, 'failed', "it was expected to fail, and passed")


if __name__ == '__main__':
    # this module's names go while another one is the main program
    sys.record_tests, path = sys.argv[1:3]
    unittest.TextTestRunner.resultclass = Recorded
    # not the directory of this file, where PyTorch would find modules of ours
    sys.path[0] = os.path.dirname(path)
    sys.argv = sys.argv[2:]
    runpy.run_path(path, run_name='__main__')
